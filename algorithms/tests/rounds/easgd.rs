//! Elastic averaging against its rule by hand, and its stability boundary.

use crate::replicas::{Made, Run, furthest};
use hexagram_algorithms::Sgd;
use hexagram_algorithms::easgd::Easgd;
use hexagram_algorithms::logical::TransportKind;
use hexagram_algorithms::logical::testing::cases;
use hexagram_algorithms::testing::Quadratic;
use std::sync::Arc;

fn made(period: u64, beta: f64) -> impl Fn() -> Made + Sync {
    move || Easgd { period, beta, ..Easgd::default() }.into()
}

fn problem() -> Quadratic {
    Quadratic { a: vec![1.0, 3.0, 0.5, 2.0], b: vec![0.0, 1.0, -2.0, 4.0] }
}

/// Returns the extensions of the springs in a step, with a period of 3 and β = 0.9, and moves the centre by them.
fn springs(step: usize, x: &[f64], centre: &mut f64) -> Vec<f64> {
    let due = step % 3 == 2;
    let extension: Vec<f64> = x.iter().map(|x| if due { x - *centre } else { 0.0 }).collect();
    *centre += 0.9 / x.len() as f64 * extension.iter().sum::<f64>();
    extension
}

#[test]
fn it_is_its_rule_written_out() {
    let rate = |step: usize| 0.05 + 0.01 * (step % 3) as f64;
    let momentum = 0.5;
    let problem = problem();
    for (transport, ranks) in cases(&[1, 3]) {
        let mut x = vec![0.7; ranks];
        let mut u = vec![0.0; ranks];
        let mut centre = 0.7;
        for step in 0..30 {
            let extension = springs(step, &x, &mut centre);
            for rank in 0..ranks {
                u[rank] = momentum * u[rank] + problem.a[rank] * (x[rank] - problem.b[rank]);
                x[rank] -= rate(step) * u[rank] + 0.9 / ranks as f64 * extension[rank];
            }
        }
        let optimizer = Arc::new(Sgd { momentum, ..Sgd::default() });
        let run = Run { transport, ranks, rate, optimizer, initial: 0.7, steps: 30, shape: vec![2] };
        let found = run.train(made(3, 0.9), |rank, _, x| problem.gradient(rank, x));
        let found: Vec<f64> = found.iter().map(|replica| replica[0]).collect();
        assert!(furthest(&found, &x) < 1e-13, "{transport} × {ranks}: {found:?} and not {x:?}");
    }
}

/// EAMSGD as in its paper, with a variable γ; the engine holds x + δ v.
#[test]
fn with_momentum_it_is_eamsgd_written_out() {
    let rate = |step: usize| 0.05 + 0.01 * (step % 3) as f64;
    let delta = 0.8;
    let problem = problem();
    for (transport, ranks) in cases(&[1, 3]) {
        let mut x = vec![0.7; ranks];
        let mut v = vec![0.0; ranks];
        let mut centre = 0.7;
        for step in 0..30 {
            let extension = springs(step, &x, &mut centre);
            for rank in 0..ranks {
                let ahead = x[rank] + delta * v[rank];
                v[rank] = delta * v[rank] - rate(step) * problem.a[rank] * (ahead - problem.b[rank]);
                x[rank] += v[rank] - 0.9 / ranks as f64 * extension[rank];
            }
        }
        let run = Run { transport, ranks, rate, initial: 0.7, steps: 30, shape: vec![2], ..Run::default() };
        let easgd = || Easgd { period: 3, beta: 0.9, momentum: delta, ..Easgd::default() }.into();
        let found = run.train(easgd, |rank, _, x| problem.gradient(rank, x));
        let found: Vec<f64> = found.iter().map(|replica| replica[0]).collect();
        let ahead: Vec<f64> = x.iter().zip(&v).map(|(x, v)| x + delta * v).collect();
        assert!(furthest(&found, &ahead) < 1e-13, "{transport} × {ranks}: {found:?} and not {ahead:?}");
    }
}

/// |x| after some steps on f(x) = x²/2 from 1, with α at a multiple of the boundary of stability.
fn at_boundary(times: f64, ranks: usize) -> f64 {
    let rate = |_: usize| 0.1;
    let eta = 0.1;
    let n = ranks as f64;
    let alpha = (4.0 - 2.0 * eta) / (2.0 + n * (2.0 - eta));
    let transport = TransportKind::Thread;
    let run = Run { transport, ranks, rate, initial: 1.0, steps: 200, shape: vec![1], ..Run::default() };
    run.train(made(1, times * n * alpha), |_, _, x: &[f64]| x.to_vec())[0][0].abs()
}

#[test]
fn it_is_stable_up_to_the_boundary_and_no_further() {
    for ranks in [1, 2, 4] {
        let below = at_boundary(0.9, ranks);
        let above = at_boundary(1.1, ranks);
        assert!(below < 1e-3, "{ranks} ranks: {below} just below the boundary");
        assert!(above > 1e3, "{ranks} ranks: {above} just above it");
    }
}

#[test]
fn replicas_end_around_the_optimum_which_is_where_their_centre_rests() {
    // In equilibrium, c is the mean of all x, and xᵢ = c − γ gᵢ/α: the gradients sum to zero.
    let problem = problem();
    let run = Run { initial: 0.7, steps: 400, shape: vec![1], ..Run::default() };
    let found = run.train(made(1, 0.9), |rank, _, x| problem.gradient(rank, x));
    let pulls: Vec<f64> = (0..4).map(|rank| problem.gradient(rank, &found[rank])[0]).collect();
    assert!(pulls.iter().sum::<f64>().abs() < 1e-9, "{pulls:?}");
    let centre = found.iter().map(|replica| replica[0]).sum::<f64>() / 4.0;
    for (replica, pull) in found.iter().zip(&pulls) {
        assert!((replica[0] - (centre - 0.1 * pull / (0.9 / 4.0))).abs() < 1e-9, "{found:?}");
    }
}
