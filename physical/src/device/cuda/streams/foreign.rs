//! Streams of other libraries, and the order between their work and that of this crate.
//!
//! A [`ForeignStream`] and a queue wait for each other by events, both ways, and neither waits on the host:
//!
//! ```text
//! framework writes x                               on its stream
//! stream.make_queue_wait(&queue)                   the queue waits for that
//! Buffer::over_foreign(&queue, x, …)               work of ours reads and writes it
//! stream.wait_for(&queue)                          the stream waits for that
//! framework reads x
//! ```
//!
//! That is DLPack's protocol, too. The receiver of a tensor names the stream on which it continues. If the receiver is the
//! other library, call [`ForeignStream::wait_for`] with its stream. If it is a queue of this crate, pass [`raw_stream`], and
//! the other library makes it wait.
//!
//! This crate never enqueues work on a foreign stream. A driver's name for a default stream denotes a different stream on each
//! thread, so only a call on the right thread finds it, and the device may release memory on any thread.

use super::stream::CudaStream;
use super::timestamp::{CudaTimestamp, Unknown};
use crate::device::cuda::driver::handle::{Handle, StreamHandle};
use crate::device::cuda::gpu::Gpu;
use crate::device::cuda::{Cuda, CudaQueue};
use crate::device::{Queue, SyncPoint, Timestamp, at};
use crate::error::{Error, Result};
use crate::memory::{Keeper, Span};
use cudarc::driver::sys::{self, CUstreamCaptureStatus};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// A stream of another library; its order is the order of that library's work on memory of a GPU.
///
/// Dropping it does not wait.
pub struct ForeignStream {
    gpu: Arc<Gpu>,
    handle: StreamHandle,
    _keeper: Keeper,
}

impl Cuda {
    /// Returns another library's stream. `handle` is the driver's `CUstream`; 0 and 1 are the legacy default stream, and
    /// 2 is the default stream of the thread that calls [`ForeignStream::make_queue_wait`] and [`ForeignStream::wait_for`].
    ///
    /// # Safety
    /// The handle is one of these three numbers, or that of a stream in the GPU's primary context that lives as long
    /// as `keeper`.
    pub unsafe fn foreign_stream(&self, handle: *mut c_void, keeper: Keeper) -> ForeignStream {
        ForeignStream { gpu: Arc::clone(&self.0), handle: Handle(handle.cast()), _keeper: keeper }
    }
}

impl ForeignStream {
    /// Makes work that is enqueued on `queue` from now on wait for all work that the stream has so far.
    ///
    /// # Errors
    /// [`Error::Usage`] if the queue is not on the stream's GPU, or if a graph capture of the stream is in progress.
    /// [`Error::System`] if the driver refuses. Then the queue does not wait.
    pub fn make_queue_wait(&self, queue: &Queue) -> Result<()> {
        let own = self.stream_of(queue)?;
        let _current = self.gpu.enter()?;
        self.check_not_captured()?;
        let event = self.gpu.event()?;
        // SAFETY: both handles are valid.
        let status = unsafe { sys::cuEventRecord(event.0, self.handle.0) };
        let recorded = self.gpu.expect(status, "record an event on another library's stream");
        let waits = recorded.and_then(|()| {
            // SAFETY: as above; the driver notes which recording is meant before it returns.
            let wait = || unsafe { sys::cuStreamWaitEvent(own.handle.0, event.0, 0) };
            let status = at(SyncPoint::BehindForeign, wait);
            self.gpu.expect(status, "wait for another library's stream")
        });
        self.gpu.give_back(event);
        waits
    }

    /// Makes work that is enqueued on the stream from now on wait for all work that `queue` has so far.
    ///
    /// [`Queue::check`] reports failures of the queue's work up to here; they do not reach the stream.
    ///
    /// # Errors
    /// As [`make_queue_wait`](Self::make_queue_wait).
    pub fn wait_for(&self, queue: &Queue) -> Result<()> {
        let event = self.stream_of(queue)?.record();
        let _current = self.gpu.enter()?;
        self.check_not_captured()?;
        let Some(recorded) = event.recorded() else { return queue.check() };
        // SAFETY: both handles are valid.
        let wait = || unsafe { sys::cuStreamWaitEvent(self.handle.0, recorded.handle.0, 0) };
        let status = at(SyncPoint::ForeignBehind, wait);
        self.gpu.expect(status, "make another library's stream wait")
    }

    /// Makes work on `memory` that is enqueued from now on, on any queue, wait for all work that the stream has so far: its
    /// library may have written this memory.
    ///
    /// # Errors
    /// As [`make_queue_wait`](Self::make_queue_wait).
    pub fn make_memory_wait(&self, memory: &Span) -> Result<()> {
        self.make_queue_wait(&memory.queue())?;
        if let Some((_, order)) = memory.place() {
            order.after_write();
        }
        Ok(())
    }

    /// Makes work that is enqueued on the stream from now on wait for all work on `memory` so far, of any queue: its
    /// library may then read and write this memory.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub fn wait_for_memory(&self, memory: &Span) -> Result<()> {
        if let Some((queue, order)) = memory.place() {
            order.before_write(&**queue, SyncPoint::BeforeWrite);
        }
        self.wait_for(&memory.queue())
    }

    /// Ends the use of `memory` by the stream's library: it is kept until all work that the stream has so far is done.
    ///
    /// # Errors
    /// As [`make_queue_wait`](Self::make_queue_wait).
    pub fn release(&self, memory: Span) -> Result<()> {
        self.make_memory_wait(&memory)?;
        let queue = memory.queue();
        self.stream_of(&queue)?.try_enqueue(memory, 0, |_, _| Ok(()))
    }

    /// Returns a point after all work in the stream so far; its time becomes known later. It stays unknown during a
    /// graph capture of the stream, or if the driver refuses.
    pub fn timestamp(&self) -> Arc<dyn Timestamp> {
        let free = self.gpu.enter().and_then(|_current| self.check_not_captured());
        free.map_or_else(|_| Arc::new(Unknown) as _, |()| CudaTimestamp::record(&self.gpu, self.handle))
    }

    /// Returns the stream of a queue of this GPU.
    fn stream_of<'a>(&self, queue: &'a Queue) -> Result<&'a Arc<CudaStream>> {
        let stream = CudaQueue::of(queue).map(|queue| &queue.0);
        stream.filter(|stream| Arc::ptr_eq(&stream.gpu, &self.gpu)).ok_or_else(|| {
            let what = format!("a queue of {} was to wait for a stream on {}", queue.name(), self.gpu.name);
            Error::usage(what, "use a queue of the same GPU as the stream")
        })
    }

    /// Fails while a graph is captured from the stream: an event of that stream would add the queue to the graph.
    fn check_not_captured(&self) -> Result<()> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32;
        // SAFETY: the handle is valid, and the pointer is valid for a write of one number.
        let asked = unsafe { sys::cuStreamIsCapturing(self.handle.0, (&raw mut status).cast()) };
        self.gpu.expect(asked, "query graph capture on another library's stream")?;
        if status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32 {
            return Ok(());
        }
        let what = format!("another library is capturing a graph from its stream on {}", self.gpu.name);
        Err(Error::usage(what, "communicate outside of the capture"))
    }
}

impl fmt::Debug for ForeignStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignStream({})", self.gpu.name)
    }
}

/// Returns the driver's `CUstream` of a GPU's queue, for another library to wait for it, or to make it wait; `None`
/// for a queue of another device. It lives as long as the queue, memory of it, or work on it.
pub fn raw_stream(queue: &Queue) -> Option<*mut c_void> {
    CudaQueue::of(queue).map(|queue| queue.0.handle.0.cast())
}
