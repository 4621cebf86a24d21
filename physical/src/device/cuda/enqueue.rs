//! Work that a path between devices enqueues on a queue: calls of the driver or of another library, in order with the
//! queue's own.
//!
//! [`enqueue`] orders the work on views as arithmetic on them is ordered, and holds what it is told to hold until the
//! device has done it. What may still go wrong then is [watched](CudaQueue::watch).

use super::CudaQueue;
use super::arithmetic;
use super::gpu::Gpu;
use super::launch::Filled;
use super::library::Libcuda;
use super::memory::DeviceMemory;
use super::status::Status;
use super::stream::{CudaStream, Tail};
use super::types::{CUdeviceptr, CUstream};
use super::watch::{Watch, Watched};
use crate::device::elsewhere::in_order;
use crate::device::program::Program;
use crate::device::{Allocation, Queue};
use crate::dtype::ReduceOp;
use crate::error::{Error, Result};
use crate::memory::Span;
use std::any::Any;
use std::sync::Arc;

/// The end of a stream, where work of a path is enqueued, with the device's context current on this thread.
pub(crate) struct PathWork<'a> {
    stream: &'a CudaStream,
    tail: &'a mut Tail,
}

impl PathWork<'_> {
    /// Returns the driver's functions.
    pub(crate) fn driver(&self) -> &'static Libcuda {
        self.stream.gpu.driver
    }

    /// Returns the stream, for calls that enqueue and return.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream.handle
    }

    /// Passes success of the driver on, and turns anything else into an error of what was attempted.
    ///
    /// # Errors
    /// [`Error::System`] unless the status is success.
    pub(crate) fn expect(&self, status: Status, doing: &str) -> Result<()> {
        self.stream.gpu.expect(status, doing)
    }

    /// Enqueues a program on operands that the device finds at these addresses. Whoever waits for the stream waits for the
    /// driver's compiler as well unless [`Queue::prepare`] was called before.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses; [`Error::Usage`] if the program is wrong.
    pub(crate) fn launch(&mut self, program: &Program, operands: &[u64]) -> Result<()> {
        let filled = Filled { operands, codec: program.module.name, before: 0 };
        self.stream.launch(self.tail, program, &filled)
    }

    /// Enqueues `to ← to ∘ from`, of elements that the device finds from this address on.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub(crate) fn reduce(&mut self, op: ReduceOp, from: CUdeviceptr, to: &Span) -> Result<()> {
        let program = arithmetic::reduce(op, to.dtype(), to.len());
        if to.is_empty() { Ok(()) } else { self.launch(&program, &[from, address(to)]) }
    }
}

/// Enqueues work on a queue that reads and writes these spans, behind all that it has to wait for. `writes` are memory of
/// this queue. They and `held` are dropped when the device has done the
/// work, under a lock of the queue: nobody may wait there for what waits for the queue.
///
/// # Errors
/// That of `work`, of which the queue then knows nothing; [`Error::System`] if the device is lost; [`Error::Usage`] if
/// the queue is no GPU's.
pub(crate) fn enqueue<H: Send + 'static>(
    queue: &Queue,
    reads: Vec<Span>,
    writes: Vec<Span>,
    held: H,
    work: impl FnOnce(&mut PathWork<'_>) -> Result<()>,
) -> Result<()> {
    let cuda = CudaQueue::of(queue).zip(queue.device());
    let (cuda, device) = cuda.ok_or_else(|| {
        Error::usage(format!("{} is not a GPU", queue.name()), "enqueue work of GPUs on their queues")
    })?;
    let stream = &cuda.0;
    let mut outcome = Ok(());
    in_order(device, &writes, &reads, || {
        let held = (reads.clone(), writes.clone(), held, Arc::clone(stream));
        outcome = stream.try_enqueue(held, 0, |_, tail| work(&mut PathWork { stream, tail }));
    });
    outcome
}

/// Returns the address of a span, as kernels and copies have it.
pub(crate) fn address(span: &Span) -> u64 {
    span.address().addr() as u64
}

impl CudaQueue {
    /// Returns the queue behind a handle, if it is a GPU's.
    pub(crate) fn of(queue: &Queue) -> Option<&Self> {
        let queue: &dyn Any = &**queue.device()?;
        queue.downcast_ref()
    }

    /// Returns the GPU, for calls that concern no stream: [`Gpu::enter`] makes its context current for them.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.0.gpu
    }

    /// Allocates memory that may be lent to other processes, as that of the queue's pool may not. It holds anything, of
    /// what was lent before: nothing else is kept there later, so that nobody finds there what is not meant for him. No
    /// work is enqueued on it, so that other queues may use it at once.
    ///
    /// # Errors
    /// [`Error::System`] that says how much was asked for and how much is free, if it runs out.
    pub(crate) fn alloc_shareable(&self, bytes: usize) -> Result<Allocation> {
        if let Some(lost) = self.0.gpu.lost() {
            return Err(lost.clone());
        }
        let memory = Arc::new(DeviceMemory::shareable(&self.0, bytes)?);
        Ok(Allocation { address: memory.pointer(), keeper: memory })
    }

    /// Lets the device look at the work that was enqueued last, until the watch is over. Events that are recorded from now
    /// on fail if it does: so this comes before anybody can ask for what the work writes.
    pub(crate) fn watch(&self, watch: Arc<dyn Watch>) {
        let stream = Arc::clone(&self.0);
        self.0.gpu.sweeper.watch(Watched::new(watch, &self.0.doubts, stream));
    }

    /// Notes that work of this queue has failed: what is watched, or else what is enqueued last. All that was enqueued
    /// behind it, here or on queues that have waited in order to read, fails with this error. Waits for nothing.
    ///
    /// To be called before the stream is let go on.
    pub(crate) fn fail(&self, error: &Error) {
        self.0.doubts.fail(error);
    }
}
