//! Every algorithm continues from a checkpoint without a difference, with every optimizer and any buckets.

use super::warmed_up::sampled;
use hexagram_algorithms::choco_sgd::ChocoSgd;
use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::dgc::Dgc;
use hexagram_algorithms::diloco::DiLoCo;
use hexagram_algorithms::logical::codec::{E4M3, Sign};
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::testing::{Setup, fitting, resumes_exactly};
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{
    Adam, Algorithm, AnyAlgorithm, Averaging, EngineOptions, Optimizer, Order, Sgd, registry,
};
use std::sync::Arc;

type Made = Box<dyn Fn() -> AnyAlgorithm + Sync>;

/// All algorithms of the registry.
fn all() -> Vec<Made> {
    let named = |algorithm: AnyAlgorithm| -> Made {
        let name = algorithm.name();
        Box::new(move || registry::named(name).unwrap())
    };
    sampled(registry::all()).into_iter().map(named).collect()
}

/// The length of a training, and its buckets.
struct Run {
    ranks: usize,
    before: usize,
    after: usize,
    order: Order,
    bytes: usize,
}

/// The algorithms continue without a difference, with buckets of this size and order.
fn all_resume(algorithms: Vec<Made>, run: Run, optimizer: impl Fn() -> Arc<dyn Optimizer> + Sync) {
    let Run { ranks, before, after, order, bytes } = run;
    let mut failed = Vec::new();
    for algorithm in algorithms {
        let setup = || {
            let first_bucket_bytes = bytes;
            let bucket_bytes = bytes;
            let engine =
                EngineOptions { order, first_bucket_bytes, bucket_bytes, ..EngineOptions::default() };
            Setup { learning_rate: 0.05, optimizer: fitting(&algorithm(), optimizer()), engine }
        };
        let resumed = resumes_exactly(ranks, before, after, &setup, &algorithm);
        failed.extend(resumed.err().map(|error| format!("{:?}: {error}", algorithm())));
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

fn plain() -> Arc<dyn Optimizer> {
    Arc::new(Sgd::default())
}

// Odd numbers of steps, so that periods are split.

#[test]
fn every_algorithm_resumes_exactly() {
    // After the warm-up of most algorithms.
    let run = Run { ranks: 4, before: 21, after: 9, order: Order::Listed, bytes: usize::MAX };
    all_resume(all(), run, plain);
}

#[test]
fn every_algorithm_resumes_exactly_with_several_buckets_in_observed_order() {
    let run = Run { ranks: 4, before: 7, after: 6, order: Order::Observed, bytes: 300 };
    all_resume(all(), run, plain);
}

#[test]
fn every_algorithm_resumes_exactly_with_momentum() {
    let run = Run { ranks: 2, before: 7, after: 6, order: Order::Observed, bytes: 1500 };
    let sgd = || Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() };
    all_resume(all(), run, || Arc::new(sgd()));
}

#[test]
fn every_algorithm_resumes_exactly_with_adam() {
    let run = Run { ranks: 2, before: 7, after: 6, order: Order::Listed, bytes: 1500 };
    all_resume(all(), run, || Arc::new(Adam::default()));
}

/// Those whose warm-up or period is too long to test, and those that contain a codec or a base.
#[test]
fn algorithms_with_phases_resume_exactly_in_each() {
    fn made<A: Algorithm + Clone>(algorithm: A) -> Made {
        Box::new(move || algorithm.clone().into())
    }
    let signs = || Averaging::encoded(Sign::default(), Feedback::TwoLevel);
    for before in [3, 9, 15] {
        let algorithms = vec![
            made(DiLoCo { period: 4, averaging: signs(), ..DiLoCo::default() }),
            made(SlowMo {
                period: 6,
                averaging: signs(),
                base: Some(ChocoSgd::default().into()),
                ..SlowMo::default()
            }),
            made(QAdam { warmup: 5, ..QAdam::default() }),
            made(ZeroOneAdam {
                freeze: 6,
                variance_doubling: 2,
                local_doubling: 4,
                ..ZeroOneAdam::default()
            }),
            made(CompressedAllReduce::LowRank { rank: 2, saving: 2.0, start: 5 }),
            made(CompressedAllReduce::Any(signs())),
            made(CompressedAllReduce::Any(Averaging::encoded(E4M3::default(), Feedback::Difference))),
            made(Dgc { warm_up: 5, weight_decay: 0.1, ..Dgc::default() }),
        ];
        let run = Run { ranks: 2, before, after: 8, order: Order::Observed, bytes: 1500 };
        all_resume(algorithms, run, plain);
    }
}
