//! Work that a path between devices enqueues on a queue: calls of the driver or of another library, in order with the
//! queue's own work.
//!
//! [`enqueue`] orders this work as arithmetic on the same views. It keeps the given values until the device has done
//! the work. A path [watches](CudaQueue::watch) work that may fail after it was enqueued.

use super::driver::handle::StreamHandle;
use super::gpu::Gpu;
use super::launch::Filled;
use super::memory::DeviceMemory;
use super::streams::failure_watch::{FailureWatch, WatchedWork};
use super::streams::stream::{CudaStream, StreamTail};
use super::{CudaQueue, arithmetic};
use crate::device::operations::cross_device::in_order;
use crate::device::operations::program::Program;
use crate::device::{Allocation, Queue};
use crate::error::{Error, Result};
use crate::memory::Span;
use crate::memory::dtype::ReduceOp;
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use std::any::Any;
use std::sync::Arc;

/// The end of a stream, where a path enqueues work; the device's context is current on this thread.
pub(crate) struct PathWork<'a> {
    stream: &'a CudaStream,
    tail: &'a mut StreamTail,
}

impl PathWork<'_> {
    /// Returns the stream, for calls that enqueue and return.
    pub(crate) fn stream(&self) -> StreamHandle {
        self.stream.handle
    }

    /// Passes success of the driver on, and turns anything else into an error about `what`.
    ///
    /// # Errors
    /// [`Error::System`] unless the status is success.
    pub(crate) fn expect(&self, status: CUresult, doing: &str) -> Result<()> {
        self.stream.gpu.expect(status, doing)
    }

    /// Enqueues a program on operands that the device finds at these addresses. Call [`Queue::prepare`] first;
    /// otherwise waiting for the stream includes waiting for the driver's compiler.
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

/// Enqueues work on a queue that reads and writes these spans, after all work that it depends on. `writes` are memory
/// of this queue. They and `held` are dropped when the device has done the work, under a lock of the queue: their
/// drop may not wait for anything that waits for the queue.
///
/// # Errors
/// The error of `work`, which the queue then does not record; [`Error::System`] if the device is lost; [`Error::Usage`] if the
/// queue is not a GPU's.
pub(crate) fn enqueue<H: Send + 'static>(
    queue: &Queue,
    reads: Vec<Span>,
    writes: Vec<Span>,
    held: H,
    work: impl FnOnce(&mut PathWork<'_>) -> Result<()>,
) -> Result<()> {
    let cuda = CudaQueue::of(queue).zip(queue.device());
    let (cuda, device) =
        cuda.ok_or_else(|| Error::usage(format!("{} is not a GPU", queue.name()), "use a queue of a GPU"))?;
    let stream = &cuda.0;
    let mut outcome = Ok(());
    in_order(device, &writes, &reads, || {
        let held = (reads.clone(), writes.clone(), held, Arc::clone(stream));
        outcome = stream.try_enqueue(held, 0, |_, tail| work(&mut PathWork { stream, tail }));
    });
    outcome
}

/// Returns the address of a span, in the type that kernels and copies use.
pub(crate) fn address(span: &Span) -> u64 {
    span.address().addr() as u64
}

impl CudaQueue {
    /// Returns the queue behind a handle, if it is a GPU's queue.
    pub(crate) fn of(queue: &Queue) -> Option<&Self> {
        let queue: &dyn Any = &**queue.device()?;
        queue.downcast_ref()
    }

    /// Returns the GPU, for calls that concern no stream: [`Gpu::enter`] makes its context current for them.
    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.0.gpu
    }

    /// Allocates memory that can be shared with other processes, unlike memory of the queue's pool. Its content is
    /// arbitrary, left from earlier shared memory. It is never reused for private data, so other processes cannot
    /// read any. It has no work enqueued, so other queues may use it immediately.
    ///
    /// # Errors
    /// [`Error::System`] with the size and the free memory, if memory runs out.
    pub(crate) fn alloc_shareable(&self, bytes: usize) -> Result<Allocation> {
        if let Some(lost) = self.0.gpu.lost() {
            return Err(lost.clone());
        }
        let memory = Arc::new(DeviceMemory::shareable(&self.0, bytes)?);
        Ok(Allocation { address: memory.pointer(), keeper: memory })
    }

    /// Makes the device watch the work enqueued last, until the watch ends. Events recorded from now on fail if the work does.
    /// So call this before another thread can wait for the work's results.
    pub(crate) fn watch(&self, watch: Arc<dyn FailureWatch>) {
        let stream = Arc::clone(&self.0);
        self.0.gpu.sweeper.watch(WatchedWork::new(watch, &self.0.pending_failures, stream));
    }

    /// Reports that work of this queue has failed: its watched work, or otherwise the work enqueued last. All work
    /// that was enqueued after it fails with this error, here and on queues that have waited for it in order to read.
    /// Does not wait.
    ///
    /// Call this before the stream continues.
    pub(crate) fn fail(&self, error: &Error) {
        self.0.pending_failures.fail(error);
    }
}
