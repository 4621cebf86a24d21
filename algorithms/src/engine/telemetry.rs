//! Figures of an engine: the time it waited, the buckets of the model, and the findings of autotune.

use super::autotune::Tuning;
use super::{DataParallel, hooks};
use hexagram_logical::DType;
use std::time::Duration;

/// Figures about a training: see [`DataParallel::telemetry`].
pub struct Telemetry<'a>(&'a DataParallel);

impl DataParallel {
    /// Returns figures about the training so far. Reading them communicates nothing.
    pub fn telemetry(&self) -> Telemetry<'_> {
        Telemetry(self)
    }
}

impl Telemetry<'_> {
    /// Returns the time that the training thread has waited for communication so far.
    pub fn blocked(&self) -> Duration {
        self.0.blocked.get()
    }

    /// Returns the element type and the length of each bucket, in the order of the plan.
    pub fn buckets(&self) -> Vec<(DType, usize)> {
        hooks::lock(&self.0.backward).buckets()
    }

    /// Returns the settings that [autotune](super::autotune) has found, or that a checkpoint says it had; `None` before
    /// that, and without autotune.
    pub fn tuned(&self) -> Option<Tuning> {
        self.0.tuned()
    }
}
