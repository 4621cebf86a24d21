//! Checks of a backward pass: that its loss is of the parameters that all ranks have, and that its gradients reach the
//! engine.

use crate::error::{Error, Result};
use crate::parameters::Entry;
use crate::replica::Replica;
use candle_core::backprop::GradStore;

impl Replica {
    /// Checks that the copies with which the model computes are fresh. If they are stale, the loss is that of another
    /// model, on this rank only. Looking at all of them would cost a pass over the parameters; a step of an optimizer
    /// shows in any few elements, and a lasting change of a single one in a large tensor is found some steps later.
    /// What is changed and changed back is not. On a GPU all are looked at, and it is told a pass later.
    pub(crate) fn check_fresh(&self) -> Result<()> {
        let Some(stale) = self.home.stale(&self.parameters, self.passes)? else { return Ok(()) };
        let what = format!("parameter `{}` was changed without its replica", self.parameters[stale].name);
        let remedy = "step with the replica (step, step_with, backward_step, Synchronized::step), or call Replica::refresh \
                      after a change of your own";
        Err(Error::usage(what, remedy))
    }

    /// Checks that no gradient reached a parameter past its tap: it would not be synchronized.
    pub(crate) fn check_untapped(&self, gradients: &GradStore) -> Result<()> {
        match self.tensors.iter().find(|entry| gradients.get(&entry.var).is_some()) {
            None => Ok(()),
            Some(Entry { name, tap: Some(_), .. }) => {
                let what = format!("parameter `{name}` was used past its builder, as a Var of the VarMap");
                Err(Error::usage(what, "use the tensor that the VarBuilder returned"))
            }
            Some(Entry { name, tap: None, .. }) => {
                let what = format!("`{name}` got a gradient, but by its name it is a running statistic");
                Err(Error::usage(what, "give trainable parameters another name"))
            }
        }
    }

    /// Checks that the pass has waited for all parameters: with one of the step before, the loss would be that of
    /// another model.
    pub(crate) fn check_awaited(&self) -> Result<()> {
        let Some(index) = self.awaited.borrow().first().copied() else { return Ok(()) };
        let what =
            format!("parameter `{}` was not waited for in the forward pass", self.parameters[index].name);
        let remedy = "call Replica::wait_for before each module, or once with the empty name";
        Err(Error::usage(what, remedy))
    }
}
