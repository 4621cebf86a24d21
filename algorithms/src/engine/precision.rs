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
use super::clip::not_finite;
use crate::plugin::Fields;
use hexagram_logical::codec::{Half, NotFinite};
use hexagram_logical::{Buffer, Communicator, DType, Error, ReadView, ReduceOp, Result, WriteView};
use std::ops::Range;

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

/// Scaling of the loss. The defaults are those of PyTorch's `GradScaler`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScale {
    /// Initial scale s. Default: 65536.
    pub initial: f64,
    /// Factor of s after `interval` steps without overflow. Default: 2.
    pub growth: f64,
    /// Factor of s after an overflow, above 0 and below 1. Default: 0.5.
    pub backoff: f64,
    /// Number of steps without overflow after which s grows. Default: 2000.
    pub interval: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale { initial: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

/// Smallest scale of use: below it the loss is not finite whatever it is multiplied with.
const SMALLEST: f64 = 1e-30;

impl LossScale {
    pub(super) fn check(self) -> Result<()> {
        let LossScale { initial, growth, backoff, interval } = self;
        let sound = initial.is_finite()
            && initial >= SMALLEST
            && growth.is_finite()
            && growth >= 1.0
            && backoff > 0.0
            && backoff < 1.0
            && interval > 0;
        if sound {
            return Ok(());
        }
        let remedy = "use initial > 0, growth ≥ 1, 0 < backoff < 1 and interval ≥ 1";
        Err(Error::usage(format!("the loss cannot be scaled by {self:?}"), remedy))
    }
}

/// Scale under way: the same on all ranks, unless these are asynchronous.
pub(super) struct Scaler {
    options: LossScale,
    scale: f64,
    /// Number of steps since the scale last changed.
    clean: u64,
}

impl Scaler {
    pub(super) fn new(options: LossScale) -> Self {
        Scaler { options, scale: options.initial, clean: 0 }
    }

    pub(super) fn scale(&self) -> f64 {
        self.scale
    }

    /// Returns true if a gradient has overflowed, of any rank of `comm` if there is one; if none has, divides them
    /// again.
    pub(super) fn undo(&self, comm: Option<&Communicator>, gradients: &[&Buffer]) -> Result<bool> {
        let mut overflow = [i32::from(not_finite(gradients)?.is_some())];
        if let Some(comm) = comm {
            comm.blocking().all_reduce(&mut overflow, ReduceOp::Max)?;
        }
        if overflow[0] == 0 {
            gradients.iter().try_for_each(|g| g.write_all()?.scale(1.0 / self.scale))?;
        }
        Ok(overflow[0] != 0)
    }

    /// Adapts the scale after a step, made or skipped.
    pub(super) fn update(&mut self, overflow: bool) -> Result<()> {
        self.clean = if overflow { 0 } else { self.clean + 1 };
        if overflow {
            self.scale *= self.options.backoff;
        } else if self.clean >= self.options.interval && (self.scale * self.options.growth).is_finite() {
            self.scale *= self.options.growth;
            self.clean = 0;
        }
        if self.scale < SMALLEST {
            let what = format!("gradients overflow even with the loss multiplied by {:e}", self.scale);
            return Err(Error::usage(what, "see why the loss is not finite, and on which rank"));
        }
        Ok(())
    }

    /// Names what the next steps depend on.
    pub(super) fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        fields.number("scale", &mut self.scale)?;
        fields.count("clean", &mut self.clean)
    }
}

fn half(dtype: DType) -> Half {
    let half = if dtype == DType::F16 { Half::F16 } else { Half::BF16 };
    half.with_not_finite(NotFinite::Propagate)
}

/// Stores `to ← from`, or `to ← to + from`, converted if `from` has 16 bits and `to` 32.
pub(super) fn widen(from: &ReadView, to: &mut WriteView, add: bool) -> Result<()> {
    if from.dtype() == to.dtype() {
        return if add { to.reduce(ReduceOp::Sum, from) } else { to.copy_from(from) };
    }
    let converted = to.decode(&half(from.dtype()), from, add.then_some(1.0))?;
    converted.map_err(|refusal| Error::usage(refusal.to_string(), "give as many elements as announced"))
}

/// Returns some elements of a bucket as a parameter of type `dtype`: rounded, where that has 16 bits.
pub(super) fn narrow(from: &Buffer, range: Range<usize>, dtype: DType) -> Result<ReadView> {
    let wide = from.read(range)?;
    if wide.dtype() == dtype {
        return Ok(wide);
    }
    let narrow = from.beside(dtype, wide.len())?;
    let converted = narrow.write_all()?.encode(&half(dtype), &wide, 0)?;
    converted.map_err(|refusal| Error::usage(refusal.to_string(), "report this: 16 bits hold any number"))?;
    narrow.read_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_backs_off_at_once_and_grows_after_an_interval() {
        let mut scaler = Scaler::new(LossScale { initial: 8.0, growth: 4.0, backoff: 0.25, interval: 3 });
        let mut scales = Vec::new();
        for overflow in [false, false, true, false, false, false, false] {
            scaler.update(overflow).unwrap();
            scales.push(scaler.scale());
        }
        assert_eq!(scales, [8.0, 8.0, 2.0, 2.0, 2.0, 8.0, 8.0]);
    }

    #[test]
    fn a_loss_that_is_never_finite_is_an_error_in_the_end() {
        let mut scaler = Scaler::new(LossScale::default());
        let skipped = (0..1000).take_while(|_| scaler.update(true).is_ok()).count();
        assert!((100..200).contains(&skipped), "{skipped}");
    }
}
