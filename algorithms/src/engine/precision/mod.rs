//! Mixed precision: 16-bit parameters over 32-bit buckets, and the scaling of the loss.
//!
//! A parameter of f16 or bf16 is stored in a bucket of f32: gradients are converted on arrival, then accumulated,
//! communicated and applied in f32, and the engine's own copy of the parameter (the *master*) is f32.
//!
//! ```text
//! loss ← s · loss                         by the training loop: gradients that 16 bits would round to zero grow by s
//! some gradient of any rank not finite:   no hook runs, no step is made, s ← s · backoff
//! otherwise:                              g ← g / s, then the hooks; after `interval` steps in a row: s ← s · growth
//! ```
//!
//! Source: Micikevicius et al., "Mixed precision training", ICLR 2018. Ranks must agree on overflows before the first
//! hook, so buckets wait for the end of the pass: loss scaling costs the overlap. Ranks of an asynchronous algorithm
//! have their own steps and scales, without agreement.
//!
//! `loss_scale` changes the scale, `overflow` finds values that are not finite, `widths` converts between 16 and 32
//! bits.

mod loss_scale;
pub(super) mod overflow;
mod widths;

pub use loss_scale::LossScale;
pub(super) use loss_scale::Scaler;
pub(super) use widths::{narrow, widen};

use super::DataParallel;

/// Current loss scaling: see [`DataParallel::loss_scaling`].
pub struct LossScaling<'a>(&'a DataParallel);

impl DataParallel {
    /// Returns the methods that the training loop needs if the [loss is scaled](super::EngineOptions::loss_scale).
    pub fn loss_scaling(&self) -> LossScaling<'_> {
        LossScaling(self)
    }
}

impl LossScaling<'_> {
    /// Returns the factor for the loss in the next backward pass: 1 without loss scaling.
    pub fn scale(&self) -> f64 {
        self.0.scaler.as_ref().map_or(1.0, Scaler::scale)
    }

    /// Returns true if the gradients of the last pass were too large for the loss scale, on any rank: then no rank has
    /// gradients for a step. [`DataParallel::step`] and [`DataParallel::stepped`] have no effect.
    pub fn overflowed(&self) -> bool {
        self.0.overflowed()
    }
}
