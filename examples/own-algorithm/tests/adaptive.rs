//! The algorithm on functions with a known minimum, with different data on each rank.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram::TransportKind;
use hexagram::algorithms::AnyAlgorithm;
use hexagram::algorithms::testing::{Setup, Trainer, payload_per_step, resumes_exactly};
use hexagram::testing::spawn;
use hexagram_own_algorithm::AdaptiveLocalSgd;

fn adaptive(tolerance: f64) -> AnyAlgorithm {
    AdaptiveLocalSgd { tolerance }.into()
}

/// What x is after each step on rank r's f(x) = (x − r)²/2; the minimum of the mean is at 1.5.
fn train(transport: TransportKind, tolerance: f64, steps: usize) -> Vec<Vec<f32>> {
    let ranks = spawn(transport, 4, |comm| {
        let mut trainer = Trainer::new(&comm, adaptive(tolerance), Setup::default(), &[vec![10.0f32]])?;
        let mut step = || {
            trainer.step(|_, x| vec![x[0] - comm.rank() as f32])?;
            Ok(trainer.parameters()?[0][0])
        };
        (0..steps).map(|_| step()).collect()
    });
    ranks.unwrap()
}

/// The steps after which all ranks have the same x.
fn equal_after(ranks: &[Vec<f32>]) -> Vec<usize> {
    (0..ranks[0].len()).filter(|step| ranks.iter().all(|x| x[*step] == ranks[0][*step])).collect()
}

#[test]
fn the_mean_of_the_replicas_finds_the_minimum() {
    for transport in TransportKind::ALL {
        let ranks = train(transport, 0.05, 200);
        let mean = ranks.iter().map(|x| x[199]).sum::<f32>() / 4.0;
        assert!((mean - 1.5).abs() < 1e-4, "{transport}: {mean}");
    }
}

#[test]
fn rounds_grow_while_replicas_are_close_and_shrink_when_they_are_not() {
    // Anything counts as close: after rounds of 1, 2, 4 and 8 steps.
    assert_eq!(equal_after(&train(TransportKind::Thread, 1e9, 16)), [0, 2, 6, 14]);
    // Nothing does.
    assert_eq!(equal_after(&train(TransportKind::Thread, 1e-9, 5)), [0, 1, 2, 3, 4]);
}

#[test]
fn the_bytes_are_those_of_its_header() {
    let ranks = 4.0;
    let elements = 32768;
    let steps = 15;
    let rounds = 4.0;
    let found = payload_per_step(4, elements, steps, || adaptive(1e9)).unwrap();
    let round = 2.0 * (ranks - 1.0) / ranks * (elements * 4) as f64 + 8.0 * (ranks - 1.0);
    let expected = round * rounds / steps as f64;
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn it_goes_on_from_a_checkpoint_anywhere_in_a_round() {
    for before in [1, 2, 5] {
        resumes_exactly(4, before, 6, &Setup::default, || adaptive(1e9)).unwrap();
    }
}

#[test]
fn a_tolerance_that_makes_no_sense_is_refused() {
    for tolerance in [0.0, -1.0, f64::NAN] {
        let error = payload_per_step(2, 8, 1, || adaptive(tolerance)).unwrap_err().to_string();
        assert!(error.contains("choose a number, above 0"), "{error}");
    }
}
