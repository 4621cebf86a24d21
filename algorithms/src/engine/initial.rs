//! The start of all ranks: rank 0's state, and buckets and states before the first pass.

use super::shared::flat_broadcast;
use super::{DataParallel, hooks};
use crate::plugin::{Fields, StepInfo};
use hexagram_logical::{Buffer, Result};

/// Preparations before the first step: see [`DataParallel::initial`].
pub struct Initial<'a>(&'a mut DataParallel);

impl DataParallel {
    /// Returns what is called before the first step, by every rank.
    pub fn initial(&mut self) -> Initial<'_> {
        Initial(self)
    }
}

impl Initial<'_> {
    /// Makes a tensor of the model, parameter or not, equal to rank 0's. Call it for all of them before the first step.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`](hexagram_logical::Communicator::broadcast).
    pub fn broadcast(&self, tensor: &mut Buffer) -> Result<()> {
        let comm = self.0.communicator();
        comm.block_on(comm.broadcast(tensor, 0))
    }

    /// Broadcasts the state that training begins with from rank 0: the engine's parameters, what its optimizer
    /// remembers, the number of steps, the scale of the loss; and these tensors, which are the model's buffers, and its
    /// parameters where the framework steps. A collective call, before the first step; the tensors go as one message.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`](hexagram_logical::Communicator::broadcast).
    pub fn broadcast_state(&mut self, tensors: &mut [Buffer]) -> Result<()> {
        let outcome = self.0.state_from_rank_0(tensors);
        self.0.checked(outcome)
    }

    /// Makes the algorithm's states before the first pass, with buckets in the order of
    /// [`Order::Listed`](super::Order::Listed). A collective call, after all parameters were set. Otherwise the first
    /// pass does it.
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) within a backward pass; those of the algorithm's
    /// [`state`](crate::Algorithm::state).
    pub fn prepare(&mut self) -> Result<()> {
        let outcome = self.0.complete().and_then(|()| self.0.between_passes()).and_then(|()| self.0.start());
        self.0.checked(outcome)
    }
}

impl DataParallel {
    fn state_from_rank_0(&mut self, tensors: &mut [Buffer]) -> Result<()> {
        self.complete()?;
        for buffer in self.replica.get_mut().buffers(true)? {
            self.comm.block_on(self.comm.broadcast(buffer, 0))?;
        }
        let StepInfo { step, begun, updates, .. } = self.present;
        let mut steps = [step as i64, begun as i64, updates as i64];
        self.comm.blocking().broadcast(&mut steps, 0)?;
        let [step, begun, updates] = steps.map(|steps| steps as u64);
        self.present = StepInfo { step, begun, updates, ..self.present };
        if let Some(scaler) = &mut self.scaler {
            let mut fields = Fields::saving();
            scaler.checkpoint(&mut fields)?;
            let mut saved = fields.finish()?;
            flat_broadcast(&self.comm, saved.values_mut().collect())?;
            scaler.checkpoint(&mut Fields::loading(saved))?;
        }
        flat_broadcast(&self.comm, tensors.iter_mut().collect())?;
        if self.started && self.present.step == 0 && self.algorithm.needs().parameters {
            // Its states were made of what each rank had.
            let plan = hooks::lock(&self.backward).plan().clone();
            self.install(plan)?;
        }
        Ok(())
    }
}
