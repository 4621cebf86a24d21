//! The algorithms of the registry, for tests of a few steps.

use hexagram_algorithms::compressed_allreduce::CompressedAllReduce;
use hexagram_algorithms::diloco::DiLoCo;
use hexagram_algorithms::easgd::Easgd;
use hexagram_algorithms::local_sgd::LocalSgd;
use hexagram_algorithms::logical::codec::{Keep, RandomK, Sign};
use hexagram_algorithms::logical::encoding::Feedback;
use hexagram_algorithms::logical::testing::is_deep;
use hexagram_algorithms::noloco::NoLoCo;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::sgp::Sgp;
use hexagram_algorithms::slowmo::SlowMo;
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{AnyAlgorithm, Averaging, MeanCodec, registry};
use std::sync::Arc;

/// Returns all algorithms, and some of them again: with a warm-up shorter than these tests, or with more state.
pub(crate) fn algorithms() -> Vec<AnyAlgorithm> {
    let mut all = registry::all();
    all.push(QAdam { warmup: 5, ..QAdam::default() }.into());
    all.push(ZeroOneAdam { freeze: 6, local_doubling: 4, ..ZeroOneAdam::default() }.into());
    all.push(CompressedAllReduce::LowRank { rank: 2, saving: 2.0, start: 5 }.into());
    all.push(LocalSgd::post(5).into());
    all.push(Easgd { momentum: 0.5, ..Easgd::default() }.into());
    all.push(NoLoCo { period: 3, ..NoLoCo::default() }.into());
    all.push(SlowMo { base: Some(Sgp::default().into()), ..SlowMo::default() }.into());
    all.push(LocalSgd { averaging: signs(), ..LocalSgd::default() }.into());
    all.push(DiLoCo { period: 4, averaging: signs(), ..DiLoCo::default() }.into());
    all.push(SlowMo { averaging: signs(), ..SlowMo::default() }.into());
    all.push(Easgd { averaging: signs(), ..Easgd::default() }.into());
    all.push(CompressedAllReduce::Any(common_places()).into());
    all
}

/// One algorithm of each trigram.
pub(crate) const SAMPLE: [&str; 8] = [
    "gradient-allreduce",
    "bytegrad",
    "d-psgd",
    "choco-sgd",
    "async-model-average",
    "compressed-async-model-average",
    "ad-psgd",
    "compressed-ad-psgd",
];

/// Returns the algorithms over which a test loops: all of them in deep tests, otherwise one of each trigram.
pub(crate) fn sampled(mut all: Vec<AnyAlgorithm>) -> Vec<AnyAlgorithm> {
    all.retain(|algorithm| is_deep() || SAMPLE.contains(&algorithm.name()));
    all
}

/// Returns an averaging whose messages with shared indices are reduced.
pub(crate) fn common_places() -> Averaging {
    Averaging {
        codec: MeanCodec::Reduced(Arc::new(RandomK::new(Keep::Ratio(0.3)).unwrap())),
        feedback: Feedback::Error,
    }
}

fn signs() -> Averaging {
    Averaging::encoded(Sign::default(), Feedback::TwoLevel)
}
