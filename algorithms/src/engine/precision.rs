//! Mixed precision: 16-bit parameters over 32-bit buckets, and the scaling of the loss.
//!
//! A parameter of f16 or bf16 lies in a bucket of f32: gradients are converted as they come, are accumulated,
//! communicated and stepped with in f32, and the engine's own copy of the parameter (the *master*) is f32.
//!
//! ```text
//! loss ← s · loss                         by the training loop: what 16 bits would round to zero is s times larger
//! some gradient of any rank not finite:   no hook runs, no step is made, s ← s · backoff
//! otherwise:                              g ← g / s, then the hooks; after `interval` steps in a row: s ← s · growth
//! ```
//!
//! Source: Micikevicius et al., "Mixed precision training", ICLR 2018. That any gradient overflows has to be agreed
//! before the first hook, so buckets wait for the end of the pass: loss scaling costs the overlap. Ranks of an
//! asynchronous algorithm have steps and scales of their own, and agree on nothing.

use super::DataParallel;
use super::loss_scale::Scaler;

/// Scaling of the loss under way: see [`DataParallel::loss_scaling`].
pub struct LossScaling<'a>(&'a DataParallel);

impl DataParallel {
    /// Returns what the training loop asks when the [loss is scaled](super::EngineOptions::loss_scale).
    pub fn loss_scaling(&self) -> LossScaling<'_> {
        LossScaling(self)
    }
}

impl LossScaling<'_> {
    /// Returns the factor to multiply the loss with, in the next backward pass: 1 without loss scaling.
    pub fn scale(&self) -> f64 {
        self.0.scaler.as_ref().map_or(1.0, Scaler::scale)
    }

    /// Returns true if the last pass ended in gradients that are too large for the loss's scale, on any rank: then
    /// there is nothing to step with, on all ranks. [`DataParallel::step`] and [`DataParallel::stepped`] do nothing.
    pub fn overflowed(&self) -> bool {
        self.0.overflowed()
    }
}
