//! SlowMo against local SGD, and against heavy-ball momentum computed by hand.

use crate::replicas::{Made, Run, furthest};
use hexagram_algorithms::d_psgd::DPsgd;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::decentralized::Mixing;
use hexagram_algorithms::logical::testing::cases;
use hexagram_algorithms::sgp::Sgp;
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::ssp::Ssp;
use hexagram_algorithms::testing::Quadratic;
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce, registry};
use std::sync::Arc;

fn made(period: u64, slow_rate: f64, slow_momentum: f64) -> impl Fn() -> Made + Sync {
    move || SlowMo { period, slow_rate, slow_momentum, ..SlowMo::default() }.into()
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
        let local = run.train(|| LocalSgd { period: 5, ..LocalSgd::default() }.into(), gradient);
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

/// SGP over a directed graph, whose weights are not 1, for four steps, and then the weighted mean and slow momentum.
#[test]
fn over_sgp_it_is_both_rules_by_hand() {
    let problem = problem();
    let gradient = |rank: usize, _: usize, x: &[f64]| problem.gradient(rank, x);
    // The destinations of each rank; all distribute equally, and keep a share.
    let destinations: [&[usize]; 4] = [&[1, 2], &[2], &[3], &[0]];
    let graph = Mixing::push(4, |rank| destinations[rank].iter().copied().collect()).unwrap();
    let base = || AnyAlgorithm::from(Sgp { schedule: Arc::new(graph.clone()) });
    let made = || {
        SlowMo { period: 4, slow_rate: 0.8, slow_momentum: 0.6, base: Some(base()), ..SlowMo::default() }
            .into()
    };
    let run = Run { rate, initial: 0.7, steps: 24, shape: vec![1], ..Run::default() };
    let found = run.train(made, gradient);
    let mut start = 0.7;
    let mut momentum = 0.0;
    let mut z = vec![0.7; 4];
    let mut w = vec![1.0; 4];
    for period in 0..6 {
        for step in 4 * period..4 * period + 4 {
            let mut x = [0.0; 4];
            let mut weights = [0.0; 4];
            for rank in 0..4 {
                let half = w[rank] * z[rank] - rate(step) * problem.a[rank] * (z[rank] - problem.b[rank]);
                let to = [&[rank], destinations[rank]].concat();
                for other in &to {
                    x[*other] += half / to.len() as f64;
                    weights[*other] += w[rank] / to.len() as f64;
                }
            }
            z = x.iter().zip(&weights).map(|(x, w)| x / w).collect();
            w = weights.to_vec();
        }
        let mean = z.iter().zip(&w).map(|(z, w)| z * w).sum::<f64>() / 4.0;
        let rate = (4 * period..4 * period + 4).map(rate).sum::<f64>() / 4.0;
        momentum = 0.6 * momentum + (start - mean) / rate;
        start -= 0.8 * rate * momentum;
        z.fill(start);
    }
    for found in found {
        assert!((found[0] - start).abs() < 1e-13, "{} and not {start}", found[0]);
    }
}

#[test]
fn over_a_base_without_slow_momentum_it_is_the_base_and_means() {
    let problem = problem();
    let gradient = |rank: usize, _: usize, x: &[f64]| problem.gradient(rank, x);
    let run = Run { initial: 0.7, steps: 23, shape: vec![3], ..Run::default() };
    let over = |period, base: AnyAlgorithm| {
        run.train(
            move || {
                SlowMo { period, slow_momentum: 0.0, base: Some(base.clone()), ..SlowMo::default() }.into()
            },
            gradient,
        )
    };
    // With a period that never ends: a base that works after the gradients, one that works before them; and one with
    // equal replicas.
    for base in [AnyAlgorithm::from(Sgp::default()), DPsgd::default().into()] {
        assert_eq!(over(100, base.clone()), run.train(|| base.clone(), gradient), "{base}");
    }
    let found = over(5, GradientAllReduce.into());
    let expected = run.train(|| GradientAllReduce.into(), gradient);
    assert!(found.iter().zip(&expected).all(|(found, expected)| furthest(found, expected) < 1e-14));
}

#[test]
fn over_a_base_it_asks_for_what_the_base_asks_for() {
    for base in registry::all() {
        let over = AnyAlgorithm::from(SlowMo { base: Some(base.clone()), ..SlowMo::default() });
        assert_eq!(over.optimizers(), base.optimizers(), "{base}");
        assert_eq!(over.clipping(), base.clipping(), "{base}");
        assert_eq!(over.needs().buckets, base.needs().buckets, "{base}");
    }
}

#[test]
fn a_base_that_does_not_wait_is_refused() {
    let made = || SlowMo { base: Some(Ssp::default().into()), ..SlowMo::default() }.into();
    let refused = Run { ranks: 2, ..Run::default() }.refused(made, |_| 1.0f64);
    assert!(refused.iter().all(|error| error.contains("base of slowmo is ssp")), "{refused:?}");
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
