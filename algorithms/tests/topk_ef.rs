//! Top-k with error feedback: where it is synchronous SGD, what it must not lose, and the bytes in its header.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_algorithms::logical::codec::{Codec, Keep, TopK};
use hexagram_algorithms::logical::testing::{cases, spawn};
use hexagram_algorithms::logical::{Communicator, TransportKind};
use hexagram_algorithms::testing::{Setup, Trainer, payload_per_step};
use hexagram_algorithms::topk_ef::TopKEf;
use hexagram_algorithms::{AnyAlgorithm, GradientAllReduce};
use std::sync::{Arc, Barrier};

const ELEMENTS: usize = 50;

/// The replicas after steps with the gradients of `gradient(rank, step, x)` and the learning rates of `rate(step)`.
fn train(
    (transport, ranks): (TransportKind, usize),
    algorithm: impl Fn() -> Arc<dyn AnyAlgorithm> + Sync,
    steps: usize,
    rate: impl Fn(usize) -> f64 + Sync,
    gradient: impl Fn(usize, usize, &[f32]) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    let run = |comm: Communicator| {
        let initial = [vec![1.0f32; ELEMENTS]];
        let mut trainer = Trainer::new(&comm, algorithm(), Setup::default(), &initial)?;
        for step in 0..steps {
            trainer.engine().set_learning_rate(rate(step));
            trainer.step(|_, x| gradient(comm.rank(), step, x))?;
        }
        Ok(trainer.parameters()?.remove(0))
    };
    spawn(transport, ranks, run).unwrap()
}

fn target(rank: usize, at: usize) -> f32 {
    ((at * 7 + rank * 31) % 23) as f32 - 11.0
}

/// Of ½‖x − target‖².
fn pull(rank: usize, _: usize, x: &[f32]) -> Vec<f32> {
    x.iter().enumerate().map(|(at, x)| x - target(rank, at)).collect()
}

fn furthest(found: &[f32], expected: &[f32]) -> f32 {
    found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max)
}

#[test]
fn all_elements_are_synchronous_sgd() {
    for case in cases(&[1, 2, 3]) {
        let found = train(case, || Arc::new(TopKEf { fraction: 1.0 }), 20, |_| 0.1, pull);
        let exact = train(case, || Arc::new(GradientAllReduce), 20, |_| 0.1, pull);
        assert!(furthest(&found[0], &exact[0]) < 1e-5, "{case:?}: {}", furthest(&found[0], &exact[0]));
    }
}

#[test]
fn what_is_not_sent_at_once_is_sent_later_at_the_rate_of_its_own_step() {
    let rate = |step: usize| [0.1, 0.05, 0.0, 0.02][step % 4];
    let gradient = |rank: usize, step: usize, x: &[f32]| match step {
        0..8 => pull(rank, step, &vec![step as f32; x.len()]),
        _ => vec![0.0; x.len()],
    };
    let case = (TransportKind::Thread, 3);
    let top = || Arc::new(TopKEf { fraction: 0.1 }) as Arc<dyn AnyAlgorithm>;
    let exact = train(case, || Arc::new(GradientAllReduce), 8, rate, gradient);
    assert!(furthest(&train(case, top, 8, rate, gradient)[0], &exact[0]) > 0.1);
    // Five of fifty elements a step: after ten more steps at a rate above 0, nothing is left.
    let found = train(case, top, 8 + 14, rate, gradient);
    assert!(furthest(&found[0], &exact[0]) < 1e-5, "{}", furthest(&found[0], &exact[0]));
}

#[test]
fn replicas_stay_identical_and_come_close_to_the_optimum() {
    for case in cases(&[3]) {
        let rate = |step: usize| 0.2 / (1.0 + step as f64 / 40.0);
        let found = train(case, || Arc::new(TopKEf { fraction: 0.06 }), 800, rate, pull);
        let mean = |at: usize| (0..case.1).map(|rank| target(rank, at)).sum::<f32>() / case.1 as f32;
        let optimum: Vec<f32> = (0..ELEMENTS).map(mean).collect();
        assert!(found.iter().all(|replica| *replica == found[0]), "{case:?}");
        assert!(furthest(&found[0], &optimum) < 1.0, "{case:?}: {}", furthest(&found[0], &optimum));
    }
}

#[test]
fn the_bytes_are_those_of_its_header() {
    for (elements, fraction) in [(32768, 0.01), (10_007, 0.3)] {
        let k = (elements as f64 * fraction).ceil() as usize;
        let low = (elements / k).ilog2() as usize;
        let message = 4 * k + (k * low + k + ((elements - 1) >> low)).div_ceil(8) + 1;
        assert_eq!(message, TopK::new(Keep::Count(k)).unwrap().encoded_len(elements));
        let found = payload_per_step(4, elements, 3, || Arc::new(TopKEf { fraction })).unwrap();
        assert!((found - (3 * message) as f64).abs() < 1e-9, "{found} and not {}", 3 * message);
    }
}

#[test]
fn a_fraction_that_is_none_is_refused() {
    for fraction in [0.0, -0.1, 1.5, f64::NAN] {
        let opened = Barrier::new(2);
        let run = |comm: Communicator| {
            let algorithm = Arc::new(TopKEf { fraction });
            let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![1.0f32; 4]])?;
            opened.wait();
            Ok(trainer.engine().prepare().unwrap_err().to_string())
        };
        let refused = spawn(TransportKind::Thread, 2, run).unwrap();
        assert!(refused.iter().any(|error| error.contains("cannot keep")), "{refused:?}");
    }
}

#[test]
fn a_gradient_that_is_not_a_number_ends_the_training_and_names_the_rank() {
    let opened = Barrier::new(3);
    let run = |comm: Communicator| {
        let algorithm = Arc::new(TopKEf::default());
        let mut trainer = Trainer::new(&comm, algorithm, Setup::default(), &[vec![1.0f32; ELEMENTS]])?;
        opened.wait();
        let value = if comm.rank() == 1 { f32::NAN } else { 1.0 };
        Ok(trainer.step(|_, x| vec![value; x.len()]).unwrap_err().to_string())
    };
    for error in spawn(TransportKind::Thread, 3, run).unwrap() {
        assert!(error.contains("rank 1"), "{error}");
    }
}
