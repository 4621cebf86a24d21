//! SlowMo against local SGD, against heavy-ball momentum worked out by hand, and against the bytes in its header.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod replicas;

use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::testing::cases;
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::testing::{Quadratic, payload_per_step};
use replicas::{Made, Run, furthest};

fn made(period: u64, slow_rate: f64, slow_momentum: f64) -> impl Fn() -> Made + Sync {
    move || SlowMo { period, slow_rate, slow_momentum }.into()
}

fn problem() -> Quadratic {
    Quadratic { a: vec![1.0, 3.0, 0.5, 2.0], b: vec![0.0, 1.0, -2.0, 4.0] }
}

/// γ, which changes between periods of five steps and within them.
fn rate(step: usize) -> f64 {
    [0.1, 0.05, 0.02, 0.08][step / 5 % 4] * if step % 7 == 2 { 0.5 } else { 1.0 }
}

#[test]
fn without_slow_momentum_it_is_local_sgd() {
    for (transport, ranks) in cases(&[1, 3]) {
        let run = Run { transport, ranks, rate, initial: 0.7, steps: 40, shape: vec![3], ..Run::default() };
        let gradient = |rank: usize, _: usize, x: &[f64]| problem().gradient(rank, x);
        let found = run.train(made(5, 1.0, 0.0), gradient);
        let local = run.train(|| LocalSgd { period: 5 }.into(), gradient);
        for (found, local) in found.iter().zip(&local) {
            assert!(furthest(found, local) < 1e-14, "{transport} × {ranks}");
        }
    }
}

#[test]
fn with_it_it_is_a_heavy_ball_over_periods() {
    let alpha = 0.8;
    let beta = 0.6;
    let problem = problem();
    let gradient = |rank: usize, _: usize, x: &[f64]| problem.gradient(rank, x);
    let run = Run { rate, initial: 0.7, steps: 60, shape: vec![1], ..Run::default() };
    let found = run.train(made(5, alpha, beta), gradient);
    let mut outer = 0.7;
    let mut momentum = 0.0;
    for period in 0..12 {
        let mut mean = 0.0;
        for rank in 0..4 {
            let mut x = outer;
            (5 * period..5 * period + 5)
                .for_each(|step| x -= rate(step) * problem.a[rank] * (x - problem.b[rank]));
            mean += x / 4.0;
        }
        let rate = (5 * period..5 * period + 5).map(rate).sum::<f64>() / 5.0;
        momentum = beta * momentum + (outer - mean) / rate;
        outer -= alpha * rate * momentum;
    }
    for found in found {
        assert!((found[0] - outer).abs() < 1e-13, "{} and not {outer}", found[0]);
    }
}

#[test]
fn a_period_with_a_rate_of_zero_changes_nothing() {
    let gradient = |rank: usize, _: usize, x: &[f64]| problem().gradient(rank, x);
    let rate = |step: usize| if step < 5 { 0.1 } else { 0.0 };
    let after = |steps| {
        let run = Run { rate, initial: 0.7, steps, shape: vec![1], ..Run::default() };
        run.train(made(5, 1.0, 0.5), gradient)
    };
    assert_eq!(after(5), after(10));
}

#[test]
fn a_rate_that_falls_within_a_period_does_not_blow_the_momentum_up() {
    let gradient = |rank: usize, _: usize, x: &[f64]| problem().gradient(rank, x);
    let rate = |step: usize| if (4..10).contains(&step) { 1e-9 } else { 0.1 };
    let run = Run { rate, initial: 0.7, steps: 40, shape: vec![1], ..Run::default() };
    for x in run.train(made(5, 1.0, 0.5), gradient) {
        assert!((-2.0..=4.0).contains(&x[0]), "{} is beyond all minima", x[0]);
    }
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let found = payload_per_step(4, 32768, 10, made(5, 1.0, 0.5)).unwrap();
    let expected = 2.0 * 3.0 / 4.0 * (32768 * 4) as f64 / 5.0;
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn options_out_of_range_are_refused() {
    let wrong = [(0, 1.0, 0.5), (5, 0.0, 0.5), (5, f64::NAN, 0.5), (5, 1.0, 1.0), (5, 1.0, f64::NAN)];
    for (period, slow_rate, slow_momentum) in wrong {
        let run = Run { ranks: 2, ..Run::default() };
        let refused = run.refused(made(period, slow_rate, slow_momentum), |_| 1.0f64);
        assert!(refused.iter().all(|error| error.contains("of slowmo is")), "{refused:?}");
    }
}
