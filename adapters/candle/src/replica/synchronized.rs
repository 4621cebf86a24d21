//! Gradients between a backward pass and the step of an optimizer of candle.

use crate::error::{Error, Result};
use crate::replica::Replica;
use candle_core::backprop::GradStore;
use candle_nn::{Optimizer, SGD};
use hexagram_algorithms::StepForm;
use std::any::{TypeId, type_name};

/// Synchronized gradients, to be used in one optimizer step.
#[must_use = "without a step the gradients are lost"]
pub struct Synchronized<'a> {
    pub(crate) replica: &'a mut Replica,
    pub(crate) gradients: GradStore,
}

impl Synchronized<'_> {
    /// Returns the gradients, for reading or clipping.
    pub fn gradients(&mut self) -> &mut GradStore {
        &mut self.gradients
    }

    /// Makes one step of `optimizer` with these gradients; none after an overflow of a scaled loss, which has none.
    ///
    /// # Errors
    /// The errors of the optimizer; [`Error::Hexagram`] if it does not fit the algorithm, as may be the case for all
    /// except [`SGD`]. Ranks cannot continue afterwards.
    pub fn step<O: Optimizer + 'static>(self, optimizer: &mut O) -> Result<()> {
        let form = if TypeId::of::<O>() == TypeId::of::<SGD>() { StepForm::Plain } else { StepForm::Other };
        if form == StepForm::Other {
            self.replica.unreached = Some(type_name::<O>());
        }
        let fits = self.replica.engine.check_framework_optimizer(form, type_name::<O>());
        self.replica.report_failure(fits.map_err(Error::from))?;
        // Optimizers of candle count a step without gradients, too.
        let skips = self.replica.engine.loss_scaling().overflowed();
        let outcome = if skips { Ok(()) } else { optimizer.step(&self.gradients).map_err(Error::from) };
        let outcome = outcome.and_then(|()| self.replica.stepped());
        self.replica.report_failure(outcome)
    }
}
