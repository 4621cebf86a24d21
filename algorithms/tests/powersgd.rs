//! PowerSGD where it is exact, what it must not lose, and the bytes in its header.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_algorithms::logical::testing::{cases, spawn};
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::powersgd::PowerSgd;
use hexagram_algorithms::testing::{Setup, Trainer, payload_of_shapes};
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce};
use std::sync::{Arc, Barrier};

const ROWS: usize = 12;
const COLS: usize = 20;

/// A number between −1 and 1 for each place.
fn noise(what: usize) -> f32 {
    let word = (what as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A matrix of full rank.
fn full(seed: usize) -> Vec<f32> {
    (0..ROWS * COLS).map(|at| noise(seed * 1000 + at)).collect()
}

/// After the gradients of `gradient(rank, step)` with learning rates `rate(step)`, the matrix and the vector behind it.
fn train(
    (transport, ranks): (TransportKind, usize),
    algorithm: impl Fn() -> Arc<dyn AnyAlgorithm> + Sync,
    steps: usize,
    rate: impl Fn(usize) -> f64 + Sync,
    gradient: impl Fn(usize, usize, &[f32]) -> Vec<f32> + Sync,
) -> Vec<Vec<Vec<f32>>> {
    let run = |comm: Communicator| {
        let shapes = [vec![ROWS, COLS], vec![7]];
        let initial = [vec![0.0; ROWS * COLS], vec![0.0f32; 7]];
        let mut trainer = Trainer::with_shapes(&comm, algorithm(), Setup::default(), &initial, &shapes)?;
        for step in 0..steps {
            trainer.engine().set_learning_rate(rate(step));
            trainer.step(|index, x| match index {
                0 => gradient(comm.rank(), step, x),
                _ => x.iter().map(|x| x - comm.rank() as f32).collect(),
            })?;
        }
        trainer.parameters()
    };
    spawn(transport, ranks, run).unwrap()
}

fn furthest(found: &[f32], expected: &[f32]) -> f32 {
    found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn a_mean_of_its_rank_is_exact() {
    // Full rank on every rank, but what they have in common is of rank 2.
    let gradient = |rank: usize, step: usize, _: &[f32]| -> Vec<f32> {
        let (own, next) = (full(rank), full((rank + 1) % 4));
        let common = |at: usize| {
            let (row, col) = (at / COLS, at % COLS);
            noise(row + 31 * step) * noise(900 + col) + noise(500 + row) * noise(700 + col)
        };
        (0..ROWS * COLS).map(|at| own[at] - next[at] + common(at)).collect()
    };
    let power = || Arc::new(PowerSgd { rank: 2, start: 0 }) as Arc<dyn AnyAlgorithm>;
    let case = (TransportKind::Thread, 4);
    let exact = train(case, || Arc::new(GradientAllReduce), 5, |_| 0.1, gradient);
    let found = train(case, power, 5, |_| 0.1, gradient);
    for (found, exact) in found.iter().zip(&exact) {
        assert!(furthest(&found[0], &exact[0]) < 2e-5, "{}", furthest(&found[0], &exact[0]));
        assert!(furthest(&found[1], &exact[1]) < 1e-5);
    }
}

#[test]
fn before_the_start_it_is_an_all_reduce() {
    let gradient = |rank: usize, step: usize, _: &[f32]| full(rank + 10 * step);
    let case = (TransportKind::Thread, 3);
    let steps = |power: PowerSgd, steps| train(case, || Arc::new(power), steps, |_| 0.1, gradient);
    let exact = |steps| train(case, || Arc::new(GradientAllReduce), steps, |_| 0.1, gradient);
    let power = PowerSgd { rank: 1, start: 4 };
    assert_eq!(steps(power, 4), exact(4));
    assert_ne!(steps(power, 5), exact(5));
}

#[test]
fn what_it_cannot_say_at_once_it_says_later() {
    // Gradients for six steps at falling learning rates, then none: the error is sent until nothing is left.
    let rate = |step: usize| 0.1 / (1 + step % 6) as f64;
    let gradient = |rank: usize, step: usize, _: &[f32]| match step {
        0..6 => full(rank + 10 * step),
        _ => vec![0.0; ROWS * COLS],
    };
    let power = || Arc::new(PowerSgd { rank: 2, start: 0 }) as Arc<dyn AnyAlgorithm>;
    let case = (TransportKind::Thread, 3);
    let exact = train(case, || Arc::new(GradientAllReduce), 6, rate, gradient);
    let found = train(case, power, 60, rate, gradient);
    let early = train(case, power, 6, rate, gradient);
    assert!(furthest(&early[0][0], &exact[0][0]) > 1e-2, "rank 2 is not enough");
    assert!(furthest(&found[0][0], &exact[0][0]) < 1e-5, "{}", furthest(&found[0][0], &exact[0][0]));
}

#[test]
fn replicas_stay_identical_and_reach_the_optimum() {
    for case in cases(&[1, 3]) {
        let gradient = |rank: usize, _: usize, x: &[f32]| -> Vec<f32> {
            x.iter().zip(full(rank)).map(|(x, target)| x - target).collect()
        };
        let found = train(case, || Arc::new(PowerSgd::default()), 120, |_| 0.2, gradient);
        let mean = |at: usize| (0..case.1).map(|rank| full(rank)[at]).sum::<f32>() / case.1 as f32;
        let optimum: Vec<f32> = (0..ROWS * COLS).map(mean).collect();
        assert!(found.iter().all(|replica| *replica == found[0]), "{case:?}");
        assert!(furthest(&found[0][0], &optimum) < 1e-3, "{case:?}: {}", furthest(&found[0][0], &optimum));
    }
}

#[test]
fn the_bytes_are_those_of_its_header() {
    // One bucket, whose reduced messages of 2 · 2560 and of 2 · 80 + 10000 elements are both large for four ranks.
    let shapes = [vec![2560, 8, 10], vec![10_000]];
    let power = || Arc::new(PowerSgd { rank: 2, start: 0 }) as Arc<dyn AnyAlgorithm>;
    let found = payload_of_shapes(4, &shapes, 3, power).unwrap();
    let elements = 2 * (2560 + 80) + 10_000;
    let expected = 2.0 * 3.0 / 4.0 * 4.0 * elements as f64;
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn a_rank_of_zero_is_refused() {
    let opened = Barrier::new(2);
    let run = |comm: Communicator| {
        let algorithm = Arc::new(PowerSgd { rank: 0, start: 0 });
        let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![1.0f32; 4]])?;
        opened.wait();
        Ok(trainer.engine().prepare().unwrap_err().to_string())
    };
    let refused = spawn(TransportKind::Thread, 2, run).unwrap();
    assert!(refused.iter().any(|error| error.contains("rank 0")), "{refused:?}");
}
