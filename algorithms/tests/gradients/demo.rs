//! DeMo against its rule written out in double precision.

use crate::replicas::{Made, Run, furthest, optimum, pull};
use hexagram_algorithms::demo::DeMo;
use hexagram_algorithms::logical::testing::cases;
use std::f64::consts::PI;

fn made(decay: f64, keep: usize) -> impl Fn() -> Made + Sync {
    move || DeMo { decay, keep }.into()
}

fn rate(step: usize) -> f64 {
    [0.1, 0.05, 0.02][step % 3]
}

/// C[k][i] of length n.
fn cosine(n: usize, k: usize, i: usize) -> f64 {
    let scale = if k == 0 { 1.0 } else { 2.0 };
    (scale / n as f64).sqrt() * (PI * (2 * i + 1) as f64 * k as f64 / (2 * n) as f64).cos()
}

/// The rule on one block, a vector of n, with Δ as elements.
fn by_hand(n: usize, ranks: usize, steps: usize, keep: usize, decay: f64) -> Vec<f64> {
    let mut x = vec![0.0; n];
    let mut momenta = vec![vec![0.0; n]; ranks];
    for step in 0..steps {
        let mut sums = vec![0.0; n];
        let mut senders = vec![0.0; n];
        for (rank, momentum) in momenta.iter_mut().enumerate() {
            let at: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            let gradient = pull(rank, step, &at);
            momentum.iter_mut().zip(gradient).for_each(|(m, g)| *m = decay * *m + rate(step) * f64::from(g));
            let coefficient = |k| (0..n).map(|i| cosine(n, k, i) * momentum[i]).sum::<f64>();
            let coefficients: Vec<f64> = (0..n).map(coefficient).collect();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|a, b| coefficients[*b].abs().total_cmp(&coefficients[*a].abs()));
            for k in &order[..keep] {
                sums[*k] += coefficients[*k];
                senders[*k] += 1.0;
                (0..n).for_each(|i| momentum[i] -= cosine(n, *k, i) * coefficients[*k]);
            }
        }
        for (i, x) in x.iter_mut().enumerate() {
            let mean = |k: usize| if senders[k] == 0.0 { 0.0 } else { sums[k] / senders[k] };
            *x -= rate(step) * (0..n).map(|k| cosine(n, k, i) * mean(k)).sum::<f64>().signum();
        }
    }
    x
}

#[test]
fn it_is_its_rule_written_out() {
    let run = Run { shape: vec![50], rate, steps: 12, ranks: 3, ..Run::default() };
    let found = run.train(made(0.9, 6), pull);
    let expected = by_hand(50, 3, 12, 6, 0.9);
    let found: Vec<f64> = found[0].iter().map(|x| f64::from(*x)).collect();
    assert!(furthest(&found, &expected) < 1e-4, "{found:?} and not {expected:?}");
}

#[test]
fn all_coefficients_without_memory_are_the_sign_of_the_mean() {
    let run = Run { shape: vec![10, 12], steps: 1, ..Run::default() };
    let gradient = |rank: usize, _: usize, x: &[f32]| -> Vec<f32> {
        (0..x.len()).map(|at| if at % 3 == 0 { -1.0 } else { 2.0 } * (rank + 1) as f32).collect()
    };
    let found = run.train(made(0.0, 120), gradient);
    let expected: Vec<f32> = (0..120).map(|at| if at % 3 == 0 { 0.1 } else { -0.1 }).collect();
    assert_eq!(found, vec![expected; 4]);
}

#[test]
fn where_there_is_no_gradient_nothing_moves() {
    let run = Run { shape: vec![70, 3], initial: 1.5f32, ..Run::default() };
    assert_eq!(run.train(made(0.999, 4), |_, _, x| vec![0.0; x.len()]), vec![vec![1.5; 210]; 4]);
}

#[test]
fn replicas_stay_identical_and_come_close_to_the_optimum() {
    for (transport, ranks) in cases(&[3]) {
        let rate = |step: usize| 0.3 / (1.0 + step as f64 / 10.0);
        let run = Run { transport, ranks, rate, steps: 150, shape: vec![5, 10], ..Run::default() };
        let found = run.train(made(0.9, 20), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{transport}");
        let error = furthest(&found[0], &optimum(ranks, 50));
        assert!(error < 1.0, "{transport} × {ranks}: {error}");
    }
}
