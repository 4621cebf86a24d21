//! State that replicas share besides gradients: the buffers of the model before a pass, and the average of the
//! parameters at the end.

use crate::engine::hooks::PassContents;
use crate::engine::options::Buffers;
use crate::engine::{DataParallel, hooks};
use hexagram_logical::{Buffer, Communicator, DType, Error, Queue, ReduceOp, Result};

impl DataParallel {
    /// Gives all ranks the same buffers, before a training forward pass, as set by [`EngineOptions::buffers`]. All
    /// buffers are sent in one message; averages in one message per element type. A collective call. It has no effect
    /// with [`Buffers::Off`], with an asynchronous algorithm, and with [`EngineOptions::uneven`], as ranks do not make
    /// the same passes then: every rank keeps its own buffers.
    ///
    /// [`EngineOptions::buffers`]: crate::EngineOptions::buffers
    /// [`EngineOptions::uneven`]: crate::EngineOptions::uneven
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

    /// Makes the model to evaluate and to save: [settles](DataParallel::settle), and replaces the parameters of every
    /// replica by their mean over all ranks, with the same bits on each. If the algorithm keeps replicas identical,
    /// checks that they are. Each rank keeps its own optimizer and algorithm state;
    /// [`average_buffers`](Self::average_buffers) averages the buffers of the model. A collective call, between steps.
    ///
    /// # Errors
    /// [`Error::Usage`] if the engine does not have the parameters, and on all ranks if replicas differ although the
    /// algorithm keeps them identical; errors of the communication.
    pub fn average(&mut self) -> Result<()> {
        self.check_has_parameters()?;
        self.settle()?;
        let outcome = self.mean_of_replicas(false);
        self.checked(outcome)?;
        if self.algorithm.keeps_replicas_identical() { self.check_replicas(&[]) } else { Ok(()) }
    }

    /// Replaces buffers of the model, such as running statistics, by their means over all ranks; integers by those of
    /// rank 0. A collective call, between steps, like [`average`](Self::average).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn average_buffers(&mut self, buffers: &mut [Buffer]) -> Result<()> {
        let outcome = flat_mean(&self.comm, buffers.iter_mut().collect());
        self.checked(outcome)
    }

    /// Replaces all replicas by their mean, if they differ; the optimizer state too, if requested.
    pub(crate) fn mean_of_replicas(&mut self, memory: bool) -> Result<()> {
        if self.algorithm.keeps_replicas_identical() {
            return Ok(());
        }
        let weights = if self.started { self.weights()? } else { Vec::new() };
        for (parameters, weight) in self.replica.get_mut().buffers(false)?.into_iter().zip(weights) {
            if weight != 1.0 {
                parameters.write_all()?.scale(weight)?;
            }
        }
        for buffer in self.replica.get_mut().buffers(memory)? {
            self.comm.block_on(self.comm.all_reduce(buffer, ReduceOp::Mean))?;
        }
        Ok(())
    }

    /// Returns the weight of this replica in the mean, by bucket.
    pub(crate) fn weights(&self) -> Result<Vec<f64>> {
        self.scheduler.call(async |runner| {
            Ok(runner.instances()?.into_iter().map(|instance| instance.weight()).collect())
        })
    }

    /// Fails during a pass or its step, which algorithms that work on parameters have left incomplete.
    pub(crate) fn between_passes(&self) -> Result<()> {
        if hooks::lock(&self.backward).is_open() {
            return Err(Error::usage("a backward pass is under way", "call finish first"));
        }
        self.check_all_evaluated()?;
        self.stepped_with_last()
    }

    /// Fails if an algorithm still waits for the step of the last pass.
    pub(crate) fn stepped_with_last(&self) -> Result<()> {
        let unused = hooks::lock(&self.backward).results() == PassContents::Synchronized;
        if unused && self.algorithm.needs().parameters {
            let what = format!("{} waits for the step that follows the last pass", self.algorithm.name());
            return Err(Error::usage(what, "call step or stepped after every finish"));
        }
        Ok(())
    }
}

/// Replaces all buffers by those of rank 0.
pub(crate) fn flat_broadcast(comm: &Communicator, buffers: Vec<&mut Buffer>) -> Result<()> {
    if comm.size() == 1 {
        return Ok(());
    }
    together(DType::U8, buffers, |flat| comm.block_on(comm.broadcast(flat, 0)))
}

/// Replaces all buffers by their means; integers by those of rank 0.
fn flat_mean(comm: &Communicator, buffers: Vec<&mut Buffer>) -> Result<()> {
    let (mut floats, integers): (Vec<_>, Vec<_>) = buffers.into_iter().partition(|b| b.dtype().is_float());
    while let Some(dtype) = floats.first().map(|buffer| buffer.dtype()) {
        let (alike, others) = floats.into_iter().partition(|buffer| buffer.dtype() == dtype);
        floats = others;
        together(dtype, alike, |flat| comm.block_on(comm.all_reduce(flat, ReduceOp::Mean)))?;
    }
    if integers.is_empty() { Ok(()) } else { flat_broadcast(comm, integers) }
}

/// Calls `work` with all buffers, joined into one of type `dtype`, which is that of all of them, or bytes. It is on their
/// device.
fn together(
    dtype: DType,
    buffers: Vec<&mut Buffer>,
    work: impl FnOnce(&mut Buffer) -> Result<()>,
) -> Result<()> {
    let len = |buffer: &Buffer| buffer.len() * buffer.dtype().size() / dtype.size();
    let mut places = Vec::new();
    let mut total = 0;
    for buffer in &buffers {
        places.push(total..total + len(buffer));
        total += len(buffer);
    }
    let queue = buffers.iter().map(|buffer| buffer.queue()).find(|queue| !queue.is_host());
    let mut flat = Buffer::zeroed_on(&queue.unwrap_or_else(Queue::host), dtype, total)?;
    let is_bytes = dtype == DType::U8;
    for (buffer, place) in buffers.iter().zip(&places) {
        let from = buffer.read_all()?;
        flat.write(place.clone())?.copy_from(&if is_bytes { from.into_bytes() } else { from })?;
    }
    work(&mut flat)?;
    for (buffer, place) in buffers.iter().zip(places) {
        let to = buffer.write_all()?;
        let mut to = if is_bytes { to.into_bytes() } else { to };
        to.copy_from(&flat.read(place)?)?;
    }
    Ok(())
}
