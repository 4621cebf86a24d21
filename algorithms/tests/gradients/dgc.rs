//! Deep gradient compression: equivalence to SGD with and without momentum, losslessness, and the bytes in its header.

use crate::replicas::{Made, Run, furthest, optimum, pull, top_k_bytes};
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::logical::Communicator;
use hexagram_algorithms::logical::testing::{cases, spawn_hosts};
use hexagram_algorithms::testing::{Setup, Trainer, payload_of_shapes};
use hexagram_algorithms::{EngineOptions, GradientAllReduce, Sgd};
use std::sync::Arc;

const ALL: Dgc = Dgc {
    fraction: 1.0,
    warm_up: 0,
    momentum: 0.8,
    nesterov: false,
    masking: false,
    weight_decay: 0.0,
    vectors: false,
};

/// A matrix of 50 elements: vectors are not compressed.
fn matrix() -> Run<f32> {
    Run { shape: vec![5, 10], ..Run::default() }
}

fn made(dgc: Dgc) -> impl Fn() -> Made + Sync {
    move || dgc.into()
}

fn rate(step: usize) -> f64 {
    [0.1, 0.03, 0.05][step % 3]
}

/// Synchronous SGD with this optimizer.
fn sgd(optimizer: Sgd, steps: usize, gradient: fn(usize, usize, &[f32]) -> Vec<f32>) -> Vec<f32> {
    let run = Run { optimizer: Arc::new(optimizer), rate, steps, ..matrix() };
    run.train(|| GradientAllReduce.into(), gradient).remove(0)
}

#[test]
fn all_elements_without_masking_are_sgd_with_momentum() {
    for nesterov in [false, true] {
        let exact = sgd(Sgd { momentum: 0.8, nesterov, ..Sgd::default() }, 30, pull);
        let found = Run { rate, steps: 30, ..matrix() }.train(made(Dgc { nesterov, ..ALL }), pull);
        let error = furthest(&found[0], &exact);
        assert!(error < 1e-4, "{error}");
    }
}

#[test]
fn all_elements_with_masking_are_plain_sgd() {
    let exact = sgd(Sgd::default(), 30, pull);
    let found = Run { rate, steps: 30, ..matrix() }.train(made(Dgc { masking: true, ..ALL }), pull);
    let error = furthest(&found[0], &exact);
    assert!(error < 1e-5, "{error}");
}

#[test]
fn what_is_sent_late_has_the_momentum_it_would_have_had() {
    fn gradient(rank: usize, step: usize, x: &[f32]) -> Vec<f32> {
        if step < 6 { pull(rank, step, &vec![step as f32; x.len()]) } else { vec![0.0; x.len()] }
    }
    // Without new gradients, momenta decay to 0, and v is sent, five of fifty elements per step.
    let exact = sgd(Sgd { momentum: 0.8, ..Sgd::default() }, 150, gradient);
    let found = Run { rate, steps: 150, ..matrix() };
    let found = found.train(made(Dgc { fraction: 0.1, ..ALL }), gradient);
    let error = furthest(&found[0], &exact);
    assert!(error < 1e-4, "{error}");
}

#[test]
fn replicas_stay_identical_and_come_close_to_the_optimum() {
    for (transport, ranks) in cases(&[3]) {
        let rate = |step: usize| 0.03 / (1.0 + step as f64 / 30.0);
        let run = Run { transport, ranks, rate, steps: 250, ..matrix() };
        let dgc = Dgc { fraction: 0.06, warm_up: 5, ..Dgc::default() };
        let found = run.train(made(dgc), pull);
        assert!(found.iter().all(|replica| *replica == found[0]), "{transport}");
        let error = furthest(&found[0], &optimum(ranks, 50));
        assert!(error < 1.0, "{transport} × {ranks}: {error}");
    }
}

#[test]
fn the_bytes_are_those_of_its_header_in_each_stage() {
    let elements = 20_000;
    let dgc = Dgc { fraction: 0.01, warm_up: 2, ..Dgc::default() };
    let found = payload_of_shapes(3, &[vec![100, 200]], 8, made(dgc)).unwrap();
    let stage = |fraction| 2.0 * top_k_bytes(elements, fraction) as f64 / 4.0;
    let expected: f64 = [0.25, 0.0625, 0.015625, 0.01].map(stage).iter().sum();
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn weight_decay_has_the_momentum_that_it_has_in_sgd() {
    for nesterov in [false, true] {
        let exact = sgd(Sgd { momentum: 0.8, nesterov, weight_decay: 0.3, ..Sgd::default() }, 30, pull);
        let dgc = Dgc { nesterov, weight_decay: 0.3, ..ALL };
        let found = Run { rate, steps: 30, ..matrix() }.train(made(dgc), pull);
        let error = furthest(&found[0], &exact);
        assert!(error < 1e-4, "{error}");
    }
}

#[test]
fn vectors_are_stepped_with_momentum_whatever_is_sent_of_matrices() {
    let dgc = Dgc { fraction: 0.02, masking: true, ..ALL };
    let vector = Run { rate, steps: 30, ..Run::default() };
    let error =
        furthest(&vector.train(made(dgc), pull)[0], &sgd(Sgd { momentum: 0.8, ..Sgd::default() }, 30, pull));
    assert!(error < 1e-4, "{error}");
    let compressed = vector.train(made(Dgc { vectors: true, ..dgc }), pull);
    assert_eq!(compressed, Run { rate, steps: 30, ..matrix() }.train(made(dgc), pull));
}

/// Returns the largest final distance of x from the optimum, if rank r has ½ (x − r)² and one of twenty elements is
/// sent per step.
fn distance(rate: f64, steps: usize, hierarchical: bool) -> f64 {
    let run = |comm: Communicator| {
        let dgc = Dgc { fraction: 0.05, momentum: 0.9, masking: true, ..ALL };
        let engine = EngineOptions { hierarchical, ..Setup::default().engine };
        let setup = Setup { engine, learning_rate: rate, ..Setup::default() };
        let mut trainer =
            Trainer::with_shapes(&comm, made(dgc)(), setup, &[vec![0.0f32; 20]], &[vec![4, 5]])?;
        for _ in 0..steps {
            trainer.step(|_, x| x.iter().map(|x| x - comm.rank() as f32).collect())?;
        }
        Ok(trainer.parameters()?.remove(0))
    };
    let found = spawn_hosts(&[0, 0, 0, 1, 1, 2], run).unwrap();
    furthest(&found[0], &[2.5; 20])
}

#[test]
fn where_elements_are_alike_the_rate_decides_as_its_header_says_with_hosts_and_without() {
    let late: f64 = (1..=20).map(|t| (1.0 - 0.9f64.powi(t)) / 0.1).sum();
    for hierarchical in [false, true] {
        let off = distance(0.25 / late, 200, hierarchical);
        assert!(off < 0.25 * 5.0 / 2.0, "{off}");
        let off = distance(0.1, 100, hierarchical);
        assert!(off > 50.0, "{off}");
    }
}
