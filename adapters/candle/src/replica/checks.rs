//! Checks of a backward pass: its loss was computed with the parameters that all ranks have, and its gradients reach
//! the engine.

use crate::error::{Error, Result};
use crate::model::ModelTensor;
use crate::replica::Replica;
use candle_core::backprop::GradStore;

impl Replica {
    /// Checks that the model computes with up-to-date copies of the parameters. With stale copies, the loss would be
    /// that of another model, on this rank only. A comparison of all elements would cost a pass over the parameters.
    /// Instead it compares a few elements: a step of an optimizer shows in any of them, and a lasting change of a
    /// single element in a large tensor is found some steps later. A change that is undone is not found. On a GPU all
    /// elements are compared, and the result is available one pass later.
    pub(crate) fn check_fresh(&self) -> Result<()> {
        let Some(stale) = self.home.stale(&self.parameters, self.passes)? else { return Ok(()) };
        let what = format!("parameter `{}` was changed without its replica", self.parameters[stale].name);
        let remedy = "step with the replica (step, step_with, backward_step, Synchronized::step), or call Replica::refresh \
                      after a change of your own";
        Err(Error::usage(what, remedy))
    }

    /// Checks that no gradient bypassed the tap of its parameter: it would not be synchronized.
    pub(crate) fn check_untapped(&self, gradients: &GradStore) -> Result<()> {
        match self.tensors.iter().find(|entry| gradients.get(&entry.var).is_some()) {
            None => Ok(()),
            Some(ModelTensor { name, tap: Some(_), .. }) => {
                let what = format!("parameter `{name}` was used past its builder, as a Var of the VarMap");
                Err(Error::usage(what, "use the tensor that the VarBuilder returned"))
            }
            Some(ModelTensor { name, tap: None, .. }) => {
                let what = format!("`{name}` got a gradient, but by its name it is a running statistic");
                Err(Error::usage(what, "give trainable parameters a different name"))
            }
        }
    }

    /// Checks that the pass has waited for all parameters: with one from the step before, the loss would be that of
    /// another model.
    pub(crate) fn check_awaited(&self) -> Result<()> {
        let Some(index) = self.awaited.borrow().first().copied() else { return Ok(()) };
        let what =
            format!("parameter `{}` was not waited for in the forward pass", self.parameters[index].name);
        let remedy = "call Replica::wait_for before each module, or once with the empty name";
        Err(Error::usage(what, remedy))
    }
}
