//! Parameters that a step leaves unchanged: those that no rank has used, and those whose gradient the training loop has
//! removed.
//!
//! ```text
//! Unused::Zero, synchronous algorithms    parameters used by any rank: an all-reduce of one byte per parameter, after
//!                                         the backward pass
//! used by some rank                       the algorithm gets their gradients, and zeros from the others
//! used by none                            idle: neither the parameter nor its optimizer state changes
//! ```
//!
//! Like PyTorch's DDP with `find_unused_parameters`. With an asynchronous algorithm, each rank decides by its own use.

use crate::engine::precision::widen;
use crate::engine::{DataParallel, Unused, hooks};
use hexagram_logical::{Buffer, Error, ReduceOp, Result};

impl DataParallel {
    /// Returns true if the step after the last pass leaves a parameter unchanged: with [`Unused::Zero`], a parameter
    /// that no rank has used. Do not pass its gradient to an optimizer of the framework then.
    pub fn is_idle(&self, parameter: usize) -> bool {
        hooks::lock(&self.backward).idle().get(parameter).is_some_and(|idle| *idle)
    }

    /// Makes the next [`step`](Self::step) leave these parameters and their optimizer state unchanged, as if no rank
    /// had used them. All ranks must name the same.
    ///
    /// # Errors
    /// [`Error::Usage`] for an index out of range.
    pub fn leave_idle(&mut self, parameters: &[usize]) -> Result<()> {
        let mut backward = hooks::lock(&self.backward);
        parameters.iter().try_for_each(|parameter| {
            backward.plan().place(*parameter)?;
            backward.idle_mut()[*parameter] = true;
            Ok(())
        })
    }

    /// Replaces the gradient that the algorithm left, between [`finish`](Self::finish) and [`step`](Self::step), for
    /// example by a clipped one. If replicas are to stay identical, it must be equal on all ranks.
    ///
    /// # Errors
    /// [`Error::Usage`] for an index out of range, for a type or length other than announced, and without gradients.
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

    /// Determines, at the end of a pass, which parameters no rank has used.
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
