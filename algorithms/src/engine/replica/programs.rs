//! GPU programs that the engine loads before ranks wait for each other.
//!
//! A GPU driver may compile a module only when all work of the device is done. If it does so when the module is first
//! used, the queue of this rank may wait for a rank that waits for this one. Codecs are loaded with their buckets.

use hexagram_logical::{Queue, Result};

/// Loads all programs of optimizers, algorithms, votes and measurements, whether needed or not: an algorithm may use the
/// programs of a different algorithm.
pub(crate) fn prepare(queue: &Queue) {
    if let Err(error) = try_prepare(queue) {
        // The first use returns the error.
        tracing::debug!("a program is not ready: {error}");
    }
}

#[cfg(not(feature = "cuda"))]
fn try_prepare(_queue: &Queue) -> Result<()> {
    Ok(())
}

#[cfg(feature = "cuda")]
fn try_prepare(queue: &Queue) -> Result<()> {
    use crate::{dgc, optimizer, slowmo};
    use hexagram_logical::centralized::encoded::VOTES;
    use hexagram_logical::device::program::Program;
    use hexagram_logical::device::{measure, unequal};
    let modules = optimizer::MODULES.into_iter().chain([&dgc::MODULE, &slowmo::MODULE]);
    let modules = modules.chain([&measure::MODULE, &unequal::MODULE, &VOTES]);
    modules.into_iter().try_for_each(|module| queue.prepare(&Program::in_turn(module, Vec::new(), 0)))
}
