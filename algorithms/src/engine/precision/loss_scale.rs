//! The scale of the loss: its options, and its changes after overflows. [`precision`](super) states
//! its purpose.

use super::overflow::not_finite;
use crate::plugin::Fields;
use hexagram_logical::{Buffer, Communicator, Error, ReduceOp, Result};

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

/// Smallest useful scale: below it, no multiple of the loss is finite.
const SMALLEST: f64 = 1e-30;

impl LossScale {
    pub(crate) fn check(self) -> Result<()> {
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

/// Current scale: the same on all ranks, unless the algorithm is asynchronous.
pub(crate) struct Scaler {
    options: LossScale,
    scale: f64,
    /// Number of steps since the scale last changed.
    clean: u64,
}

impl Scaler {
    pub(crate) fn new(options: LossScale) -> Self {
        Scaler { options, scale: options.initial, clean: 0 }
    }

    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// Returns true if a gradient has overflowed, on any rank of `comm` if it is given; otherwise divides the gradients
    /// by the scale.
    pub(crate) fn undo(&self, comm: Option<&Communicator>, gradients: &[&Buffer]) -> Result<bool> {
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
    pub(crate) fn update(&mut self, overflow: bool) -> Result<()> {
        self.clean = if overflow { 0 } else { self.clean + 1 };
        if overflow {
            self.scale *= self.options.backoff;
        } else if self.clean >= self.options.interval && (self.scale * self.options.growth).is_finite() {
            self.scale *= self.options.growth;
            self.clean = 0;
        }
        if self.scale < SMALLEST {
            let what = format!("gradients overflow even with the loss multiplied by {:e}", self.scale);
            return Err(Error::usage(what, "find out why the loss is not finite, and on which rank"));
        }
        Ok(())
    }

    /// Saves the state on which the next steps depend.
    pub(crate) fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        fields.number("scale", &mut self.scale)?;
        fields.count("clean", &mut self.clean)
    }
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
