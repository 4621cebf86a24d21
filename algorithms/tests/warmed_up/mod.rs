//! The algorithms of the registry, for tests of a few steps.

use hexagram_algorithms::easgd::Easgd;
use hexagram_algorithms::post_local_sgd::PostLocalSgd;
use hexagram_algorithms::powersgd::PowerSgd;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{AnyAlgorithm, registry};

/// Returns all algorithms, and some again: with a shorter warm-up than these tests are, or with more to remember.
pub(crate) fn algorithms() -> Vec<AnyAlgorithm> {
    let mut all = registry::all();
    all.push(QAdam { warmup: 5, ..QAdam::default() }.into());
    all.push(ZeroOneAdam { freeze: 6, local_doubling: 4, ..ZeroOneAdam::default() }.into());
    all.push(PowerSgd { start: 5, ..PowerSgd::default() }.into());
    all.push(PostLocalSgd { start: 5, ..PostLocalSgd::default() }.into());
    all.push(Easgd { momentum: 0.5, ..Easgd::default() }.into());
    all
}
