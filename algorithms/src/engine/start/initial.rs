//! The start of all ranks: the state of rank 0, and buckets and states before the first pass.

use crate::engine::replica::flat_broadcast;
use crate::engine::{DataParallel, hooks};
use crate::plugin::{Fields, StepInfo};
use hexagram_logical::{Buffer, Result};

/// Preparations before the first step: see [`DataParallel::initial`].
pub struct Initial<'a>(&'a mut DataParallel);

impl DataParallel {
    /// Returns the methods that every rank calls before the first step.
    pub fn initial(&mut self) -> Initial<'_> {
        Initial(self)
    }
}

impl Initial<'_> {
    /// Copies a tensor of the model, parameter or not, from rank 0 to all ranks. Call it for all tensors before the
    /// first step.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`](hexagram_logical::Communicator::broadcast).
    pub fn broadcast(&self, tensor: &mut Buffer) -> Result<()> {
        let comm = self.0.communicator();
        comm.block_on(comm.broadcast(tensor, 0))
    }

    /// Broadcasts the initial state of the training from rank 0: the parameters of the engine, the state of its
    /// optimizer, the number of steps and the loss scale; and `tensors`: the buffers of the model, and its parameters
    /// if the framework makes the steps. A collective call, before the first step; the tensors are sent as one message.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`](hexagram_logical::Communicator::broadcast).
    pub fn broadcast_state(&mut self, tensors: &mut [Buffer]) -> Result<()> {
        let outcome = self.0.state_from_rank_0(tensors);
        self.0.checked(outcome)
    }

    /// Creates the states of the algorithm before the first pass, with buckets in the order of
    /// [`Order::Listed`](crate::Order::Listed). A collective call, after all parameters were set. Without it, the first
    /// pass creates them.
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) within a backward pass; the errors of
    /// [`state`](crate::Algorithm::state) in the algorithm.
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
            // Its states were made from the values of each rank.
            let plan = hooks::lock(&self.backward).plan().clone();
            self.install(plan)?;
        }
        Ok(())
    }
}
