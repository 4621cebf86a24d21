//! The algorithms of the registry, for tests of a few steps.

use hexagram_algorithms::post_local_sgd::PostLocalSgd;
use hexagram_algorithms::powersgd::PowerSgd;
use hexagram_algorithms::qadam::QAdam;
use hexagram_algorithms::zero_one_adam::ZeroOneAdam;
use hexagram_algorithms::{AnyAlgorithm, registry};
use std::sync::Arc;

/// Returns all algorithms, and those again whose warm-up is longer than these tests, with a shorter one.
pub(crate) fn algorithms() -> Vec<Arc<dyn AnyAlgorithm>> {
    let mut all = registry::all();
    all.push(Arc::new(QAdam { warmup: 5, ..QAdam::default() }));
    all.push(Arc::new(ZeroOneAdam { freeze: 6, local_doubling: 4, ..ZeroOneAdam::default() }));
    all.push(Arc::new(PowerSgd { start: 5, ..PowerSgd::default() }));
    all.push(Arc::new(PostLocalSgd { start: 5, ..PostLocalSgd::default() }));
    all
}
