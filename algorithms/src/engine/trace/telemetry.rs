//! Figures of an engine: the waiting time, the buckets of the model, and the results of autotune.

use crate::engine::autotune::Tuning;
use crate::engine::{DataParallel, hooks};
use hexagram_logical::DType;
use std::time::Duration;

/// Figures about a training: see [`DataParallel::telemetry`].
pub struct Telemetry<'a>(&'a DataParallel);

impl DataParallel {
    /// Returns figures about the training so far. Reading them needs no communication.
    pub fn telemetry(&self) -> Telemetry<'_> {
        Telemetry(self)
    }
}

impl Telemetry<'_> {
    /// Returns the time that the training thread has waited for communication.
    pub fn blocked(&self) -> Duration {
        self.0.blocked.get()
    }

    /// Returns the element type and length of each bucket, in plan order.
    pub fn buckets(&self) -> Vec<(DType, usize)> {
        hooks::lock(&self.0.backward).buckets()
    }

    /// Returns the settings that [autotune](crate::engine::autotune) has found, or those of a loaded checkpoint; `None`
    /// before that, and without autotune.
    pub fn tuned(&self) -> Option<Tuning> {
        self.0.tuned()
    }
}
