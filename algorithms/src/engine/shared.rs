//! What all ranks begin with, and what they share between steps: the initial state, buffers, and the final average.

use super::backward::Results;
use super::options::Buffers;
use super::{DataParallel, backward};
use crate::plugin::Fields;
use hexagram_logical::{Buffer, Communicator, DType, Error, ReduceOp, Result};

impl DataParallel {
    /// Makes a tensor of the model, parameter or not, equal to rank 0's. Call it for all of them before the first step.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast(&self, tensor: &mut Buffer) -> Result<()> {
        self.comm.block_on(self.comm.broadcast(tensor, 0))
    }

    /// Makes everything equal to rank 0's that training begins with: the engine's parameters, what its optimizer
    /// remembers, the number of steps, the scale of the loss; and these tensors, which are the model's buffers, and its
    /// parameters where the framework steps. A collective call, before the first step; the tensors go as one message.
    ///
    /// # Errors
    /// As [`Communicator::broadcast`].
    pub fn broadcast_state(&mut self, tensors: &mut [Buffer]) -> Result<()> {
        let outcome = self.state_from_rank_0(tensors);
        self.checked(outcome)
    }

    fn state_from_rank_0(&mut self, tensors: &mut [Buffer]) -> Result<()> {
        for buffer in self.replica.buffers(true)? {
            self.comm.block_on(self.comm.broadcast(buffer, 0))?;
        }
        let mut step = [self.turn.step as i64];
        self.comm.blocking().broadcast(&mut step, 0)?;
        self.turn.step = step[0] as u64;
        if let Some(scaler) = &mut self.scaler {
            let mut fields = Fields::saving();
            scaler.checkpoint(&mut fields)?;
            let mut saved = fields.finish()?;
            flat_broadcast(&self.comm, saved.values_mut().collect())?;
            scaler.checkpoint(&mut Fields::loading(saved))?;
        }
        flat_broadcast(&self.comm, tensors.iter_mut().collect())?;
        if self.started && self.turn.step == 0 && self.algorithm.needs().parameters {
            // Its states were made of what each rank had.
            let plan = backward::lock(&self.backward).plan().clone();
            self.install(plan)?;
        }
        Ok(())
    }

    /// Before a training forward pass: gives all ranks the same buffers, as [`EngineOptions::buffers`] says. All of
    /// them travel together, as one message; averages as one of each element type. A collective call; or nothing, and
    /// every rank keeps its own, with [`Buffers::Off`] and where ranks do not make the same passes: with an asynchronous
    /// algorithm, and with [`EngineOptions::uneven`].
    ///
    /// [`EngineOptions::buffers`]: super::EngineOptions::buffers
    /// [`EngineOptions::uneven`]: super::EngineOptions::uneven
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn synchronize_buffers(&mut self, buffers: &mut [Buffer]) -> Result<()> {
        let all = buffers.iter_mut().collect();
        let in_step = self.algorithm.trigram().synchronous && !self.options.uneven;
        let outcome = match self.options.buffers {
            _ if !in_step => Ok(()),
            Buffers::Off => Ok(()),
            Buffers::Broadcast => flat_broadcast(&self.comm, all),
            Buffers::Average => flat_mean(&self.comm, all),
        };
        self.checked(outcome)
    }

    /// The model to evaluate and to save: [settles](DataParallel::settle), and replaces every replica's parameters by
    /// their mean over all ranks, bit for bit the same on each. Replicas that the algorithm keeps identical are that
    /// already. What the optimizer remembers stays each rank's own, and so does the algorithm's state. A collective call,
    /// between steps.
    ///
    /// # Errors
    /// [`Error::Usage`] if the engine does not have the parameters; errors of the communication.
    pub fn average(&mut self) -> Result<()> {
        if !self.works_on_parameters() {
            let remedy = "average the framework's, or let the engine run the optimizer";
            return Err(Error::usage("the engine does not have the parameters", remedy));
        }
        self.settle()?;
        let outcome = self.mean_of_replicas(false);
        self.checked(outcome)
    }

    /// All replicas ← their mean, if they differ; with what the optimizer remembers, if asked for.
    pub(super) fn mean_of_replicas(&mut self, memory: bool) -> Result<()> {
        if self.algorithm.keeps_replicas_identical() {
            return Ok(());
        }
        for buffer in self.replica.buffers(memory)? {
            self.comm.block_on(self.comm.all_reduce(buffer, ReduceOp::Mean))?;
        }
        Ok(())
    }

    /// Fails if a pass is under way, or its step is: algorithms that work on parameters have left it half done.
    pub(super) fn between_passes(&self) -> Result<()> {
        if backward::lock(&self.backward).is_open() {
            return Err(Error::usage("a backward pass is under way", "call finish first"));
        }
        self.stepped_with_last()
    }

    /// Fails if an algorithm still waits for the step that belongs to the last pass.
    pub(super) fn stepped_with_last(&self) -> Result<()> {
        let unused = backward::lock(&self.backward).results() == Results::Synchronized;
        if unused && self.algorithm.needs().parameters {
            let what = format!("{} waits for the step that follows the last pass", self.algorithm.name());
            return Err(Error::usage(what, "call step or stepped after every finish"));
        }
        Ok(())
    }
}

/// All buffers ← rank 0's.
fn flat_broadcast(comm: &Communicator, buffers: Vec<&mut Buffer>) -> Result<()> {
    together(DType::U8, buffers, |flat| comm.block_on(comm.broadcast(flat, 0)))
}

/// All buffers ← their means; those of integers ← rank 0's.
fn flat_mean(comm: &Communicator, buffers: Vec<&mut Buffer>) -> Result<()> {
    let (mut floats, integers): (Vec<_>, Vec<_>) = buffers.into_iter().partition(|b| b.dtype().is_float());
    while let Some(dtype) = floats.first().map(|buffer| buffer.dtype()) {
        let (alike, others) = floats.into_iter().partition(|buffer| buffer.dtype() == dtype);
        floats = others;
        together(dtype, alike, |flat| comm.block_on(comm.all_reduce(flat, ReduceOp::Mean)))?;
    }
    if integers.is_empty() { Ok(()) } else { flat_broadcast(comm, integers) }
}

/// Does something with all buffers as one, of elements of `dtype`.
fn together(
    dtype: DType,
    buffers: Vec<&mut Buffer>,
    work: impl FnOnce(&mut Buffer) -> Result<()>,
) -> Result<()> {
    let bytes = |buffer: &Buffer| buffer.len() * buffer.dtype().size();
    let total: usize = buffers.iter().map(|buffer| bytes(buffer)).sum();
    let mut flat = Buffer::zeroed(dtype, total / dtype.size())?;
    let all = 0..flat.len();
    let mut view = flat.write(all.clone())?;
    let mut rest = view.bytes_mut();
    for buffer in &buffers {
        let (to, others) = rest.split_at_mut(bytes(buffer));
        to.copy_from_slice(buffer.read(0..buffer.len())?.bytes());
        rest = others;
    }
    drop(view);
    work(&mut flat)?;
    let view = flat.read(all)?;
    let mut rest = view.bytes();
    for buffer in buffers {
        let (from, others) = rest.split_at(bytes(buffer));
        buffer.write(0..buffer.len())?.bytes_mut().copy_from_slice(from);
        rest = others;
    }
    Ok(())
}
