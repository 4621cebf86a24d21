//! Parameters that a step leaves as they are: those that no rank has used, and those whose gradient the training loop has
//! taken away.
//!
//! ```text
//! Unused::Zero, synchronous algorithms    which parameters does any rank use: an all-reduce of a byte for each, after
//!                                         the backward pass
//! used by some rank                       the gradient is what the algorithm makes of theirs and of zeros
//! used by none                            idle: neither the parameter nor what the optimizer remembers of it changes
//! ```
//!
//! As PyTorch's DDP does with `find_unused_parameters`. A rank of an asynchronous algorithm leaves what it has not used
//! itself.

use super::widths::widen;
use super::{DataParallel, Unused, hooks};
use hexagram_logical::{Buffer, Error, ReduceOp, Result};

impl DataParallel {
    /// Returns true if the step after the last pass leaves a parameter as it is: with [`Unused::Zero`], one that no rank
    /// has used. A framework's own optimizer is then not to be given its gradient.
    pub fn is_idle(&self, parameter: usize) -> bool {
        hooks::lock(&self.backward).idle().get(parameter).is_some_and(|idle| *idle)
    }

    /// Lets the next [`step`](Self::step) leave these parameters as they are, with what the optimizer remembers of them,
    /// as if no rank had used them. All ranks must name the same.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such parameter.
    pub fn leave_idle(&mut self, parameters: &[usize]) -> Result<()> {
        let mut backward = hooks::lock(&self.backward);
        parameters.iter().try_for_each(|parameter| {
            backward.plan().place(*parameter)?;
            backward.idle_mut()[*parameter] = true;
            Ok(())
        })
    }

    /// Puts a gradient in the place of the one that the algorithm left, between [`finish`](Self::finish) and
    /// [`step`](Self::step): clipped or otherwise changed, and alike on all ranks where replicas are to stay so.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no such parameter, for another type or length than announced, and where there are no
    /// gradients.
    pub fn set_gradient(&mut self, parameter: usize, values: &Buffer) -> Result<()> {
        self.gradient(parameter)?;
        let backward = hooks::lock(&self.backward);
        let announced = backward.plan().parameter(parameter)?;
        if (values.dtype(), values.len()) != (announced.dtype, announced.len()) {
            let given = format!("{} × {}", values.len(), values.dtype());
            let what = format!("the gradient of `{}` was to be {given}", announced.name);
            return Err(Error::usage(
                what,
                format!("give {} × {}, as announced", announced.len(), announced.dtype),
            ));
        }
        let (bucket, range) = backward.plan().place(parameter)?;
        widen(&values.read_all()?, &mut backward.buffer(bucket)?.write(range)?, false)
    }

    /// Finds out, at the end of a pass, which parameters no rank has used.
    pub(super) fn agree_on_idle(&mut self) -> Result<()> {
        let mut backward = hooks::lock(&self.backward);
        if self.options.unused == Unused::Error {
            backward.idle_mut().fill(false);
            return Ok(());
        }
        if !self.algorithm.trigram().synchronous || self.comm.size() == 1 {
            return Ok(());
        }
        let mut used: Vec<u8> = backward.idle().iter().map(|idle| u8::from(!idle)).collect();
        drop(backward);
        self.while_waiting(|engine| engine.comm.blocking().all_reduce(&mut used, ReduceOp::Max))?;
        let mut backward = hooks::lock(&self.backward);
        backward.idle_mut().iter_mut().zip(used).for_each(|(idle, used)| *idle = used == 0);
        Ok(())
    }
}
