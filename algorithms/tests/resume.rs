//! Every algorithm goes on from a checkpoint as if nothing had been, with every optimizer and any buckets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use hexagram_algorithms::testing::{Setup, resumes_exactly};
use hexagram_algorithms::{Adam, AnyAlgorithm, EngineOptions, Optimizer, Order, Sgd, registry};
use std::sync::Arc;

/// All algorithms of the registry, with buckets of so many bytes in this order.
fn all_resume(ranks: usize, order: Order, bytes: usize, optimizer: impl Fn() -> Arc<dyn Optimizer> + Sync) {
    let mut failed = Vec::new();
    for algorithm in registry::all() {
        let name = algorithm.name();
        let setup = || {
            let (first_bucket_bytes, bucket_bytes) = (bytes, bytes);
            let engine =
                EngineOptions { order, first_bucket_bytes, bucket_bytes, ..EngineOptions::default() };
            Setup { learning_rate: 0.05, optimizer: optimizer(), engine }
        };
        // Odd numbers of steps, so that periods are cut in two.
        let resumed = resumes_exactly(ranks, 7, 6, &setup, || -> Arc<dyn AnyAlgorithm> {
            registry::named(name).unwrap()
        });
        failed.extend(resumed.err().map(|error| format!("{name}: {error}")));
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

fn plain() -> Arc<dyn Optimizer> {
    Arc::new(Sgd::default())
}

#[test]
fn every_algorithm_resumes_exactly() {
    all_resume(4, Order::Listed, usize::MAX, plain);
}

#[test]
fn every_algorithm_resumes_exactly_with_several_buckets_in_observed_order() {
    all_resume(4, Order::Observed, 300, plain);
}

#[test]
fn every_algorithm_resumes_exactly_with_momentum() {
    let sgd = || Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() };
    all_resume(2, Order::Observed, 1500, || Arc::new(sgd()));
}

#[test]
fn every_algorithm_resumes_exactly_with_adam() {
    all_resume(2, Order::Listed, 1500, || Arc::new(Adam::default()));
}
