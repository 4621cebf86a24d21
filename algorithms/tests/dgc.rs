//! Deep gradient compression: where it is SGD with momentum and without, what it must not lose, and the bytes in its
//! header.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod replicas;

use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::logical::testing::cases;
use hexagram_algorithms::testing::payload_per_step;
use hexagram_algorithms::{GradientAllReduce, Sgd};
use replicas::{Made, Run, furthest, optimum, pull, top_k_bytes};
use std::sync::Arc;

const ALL: Dgc = Dgc { fraction: 1.0, warm_up: 0, momentum: 0.8, nesterov: false, masking: false };

fn made(dgc: Dgc) -> impl Fn() -> Made + Sync {
    move || dgc.into()
}

fn rate(step: usize) -> f64 {
    [0.1, 0.03, 0.05][step % 3]
}

/// Synchronous SGD with this optimizer.
fn sgd(optimizer: Sgd, steps: usize, gradient: fn(usize, usize, &[f32]) -> Vec<f32>) -> Vec<f32> {
    let run = Run { optimizer: Arc::new(optimizer), rate, steps, ..Run::default() };
    run.train(|| GradientAllReduce.into(), gradient).remove(0)
}

#[test]
fn all_elements_without_masking_are_sgd_with_momentum() {
    for nesterov in [false, true] {
        let exact = sgd(Sgd { momentum: 0.8, nesterov, ..Sgd::default() }, 30, pull);
        let found = Run { rate, steps: 30, ..Run::default() }.train(made(Dgc { nesterov, ..ALL }), pull);
        let error = furthest(&found[0], &exact);
        assert!(error < 1e-4, "{error}");
    }
}

#[test]
fn all_elements_with_masking_are_plain_sgd() {
    let exact = sgd(Sgd::default(), 30, pull);
    let found = Run { rate, steps: 30, ..Run::default() }.train(made(Dgc { masking: true, ..ALL }), pull);
    let error = furthest(&found[0], &exact);
    assert!(error < 1e-5, "{error}");
}

#[test]
fn what_is_sent_late_has_the_momentum_it_would_have_had() {
    fn gradient(rank: usize, step: usize, x: &[f32]) -> Vec<f32> {
        if step < 6 { pull(rank, step, &vec![step as f32; x.len()]) } else { vec![0.0; x.len()] }
    }
    // Without new gradients, momenta decay to nothing, and v is sent, five of fifty elements a step.
    let exact = sgd(Sgd { momentum: 0.8, ..Sgd::default() }, 150, gradient);
    let found = Run { rate, steps: 150, ..Run::default() };
    let found = found.train(made(Dgc { fraction: 0.1, ..ALL }), gradient);
    let error = furthest(&found[0], &exact);
    assert!(error < 1e-4, "{error}");
}

#[test]
fn replicas_stay_identical_and_come_close_to_the_optimum() {
    for (transport, ranks) in cases(&[3]) {
        let rate = |step: usize| 0.03 / (1.0 + step as f64 / 30.0);
        let run = Run { transport, ranks, rate, steps: 250, ..Run::default() };
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
    let found = payload_per_step(3, elements, 8, made(dgc)).unwrap();
    let stage = |fraction| 2.0 * top_k_bytes(elements, fraction) as f64 / 4.0;
    let expected: f64 = [0.25, 0.0625, 0.015625, 0.01].map(stage).iter().sum();
    assert!((found - expected).abs() < 1e-9, "{found} and not {expected}");
}

#[test]
fn options_out_of_range_are_refused() {
    let wrong = [
        (Dgc { fraction: 0.0, ..ALL }, "cannot keep"),
        (Dgc { momentum: 1.0, ..ALL }, "momentum of dgc is 1.0"),
        (Dgc { momentum: f64::NAN, ..ALL }, "momentum of dgc is NaN"),
    ];
    for (dgc, what) in wrong {
        let refused = Run { ranks: 2, ..Run::default() }.refused(made(dgc), |_| 1.0f32);
        assert!(refused.iter().all(|error| error.contains(what)), "{refused:?}");
    }
}

#[test]
fn a_gradient_that_is_not_a_number_ends_the_training_and_names_the_rank() {
    let gradient = |rank| if rank == 1 { f32::NAN } else { 1.0 };
    for error in (Run { ranks: 3, ..Run::default() }).refused(made(ALL), gradient) {
        assert!(error.contains("rank 1"), "{error}");
    }
}
