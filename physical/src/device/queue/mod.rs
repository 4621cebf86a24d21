//! Queues: ordered work on one device.
//!
//! Work is *enqueued*: a call returns once it is ordered after the earlier work of its queue, and is not awaited. A
//! buffer belongs to one queue, which does all work that writes it. If work reads memory of another queue, or writes
//! memory that another queue has read, the queue waits for an [`Event`] of the other one; `order` keeps these events.
//! The host queue enqueues nothing: its work is complete when the call returns, at no cost.
//!
//! A device implements [`DeviceQueue`] and [`Event`]. The layers above use [`Queue`] alone, and rarely: scratch, state and
//! snapshots are created [on the device](crate::Buffer::zeroed_same_device) of the buffer that they serve.
//!
//! # Failures
//! Work that runs late fails late, and its output is then wrong. A [`Failure`] travels with those bytes: a queue
//! keeps its first one, an [`Event`] carries the failure of its queue at that point, and a queue that waits for the
//! event [in order to read](DeviceQueue::wait_to_read) adopts it. So a message does not leave the rank if the event
//! of its copy to the host carries a failure, whichever queue has failed. Access from the program, [`Queue::check`]
//! and [`Queue::refusal`] take the failure of their queue; events that were recorded before keep it. A device whose
//! kernels write an error word in its memory has one for each queue and event: `record` and `wait_to_read` copy it in
//! the order of their queue, and the host reads it when the event has happened. On the host, work fails immediately.
//!
//! Therefore the refusal of a codec is found within the operation, before the message leaves. It names this rank, and
//! the element in device memory, but neither tensor nor operation, since the queue serves several. Work outside of
//! operations (windows, pairs, a parameter server) waits for the queue with [`Queue::refusal`], and reports the same
//! details as on the host.

pub(super) mod meanwhile;
pub(super) mod order;
pub(super) mod sync_point;
pub(super) mod timestamp;
pub(super) mod waiting;

use super::codec::{Codec, CodecError};
use super::operations::program::Program;
use super::{Kernel, Timestamp};
use crate::error::{Error, Result};
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{Buffer, Keeper, ReadView, Span, WriteView};
use crate::runtime;
use crate::runtime::Work;
use crate::transport::Bell;
use crate::waiting::deadline;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Handle of a queue: the host's, or one of a [`Device`](crate::Device). Cheap to clone.
///
/// ```
/// use hexagram_physical::device::Queue;
/// use hexagram_physical::{Buffer, DType};
///
/// let parameters = Buffer::zeroed_on(&Queue::host(), DType::F32, 1000)?;
/// let momentum = Buffer::zeroed_on(&parameters.queue(), DType::F32, 1000)?;
/// momentum.queue().check()?;
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Queue(Option<Arc<dyn DeviceQueue>>);

impl Queue {
    /// Returns the host's queue, whose work is done when the call returns.
    pub fn host() -> Self {
        Queue(None)
    }

    /// Returns the handle of a device's queue.
    pub fn of(queue: Arc<dyn DeviceQueue>) -> Self {
        Queue(Some(queue))
    }

    /// Returns true for the host's queue.
    pub fn is_host(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the queue of a device other than the host.
    pub fn device(&self) -> Option<&Arc<dyn DeviceQueue>> {
        self.0.as_ref()
    }

    /// Returns the name of the device in messages: `host`, `cuda:0`.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("host", |queue| queue.device())
    }

    /// Creates another queue of the same device with the same [limit](Self::set_limit), for independent work. On the
    /// host, this returns the host queue.
    ///
    /// # Errors
    /// [`Error::System`] if the device has no more.
    pub fn another(&self) -> Result<Queue> {
        let Some(queue) = &self.0 else { return Ok(Queue::host()) };
        let another = queue.another()?;
        another.set_limit(queue.limit());
        Ok(another)
    }

    /// Returns host memory with fast copies from and to this queue, with arbitrary content.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn host_memory(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.0.as_ref().map_or_else(|| Buffer::zeroed(dtype, len), |queue| host_memory(&**queue, dtype, len))
    }

    /// Charges host arithmetic for memory of this queue in a simulated world. Returns true if the host must do the arithmetic.
    /// Returns false for memory that has sizes but no content; its elements must not be accessed.
    ///
    /// ```
    /// use hexagram_physical::Buffer;
    /// use hexagram_physical::runtime::Work;
    ///
    /// let mut numbers = Buffer::from_slice(&[1.0f32, 2.0])?;
    /// if numbers.queue().computes(|| Work::Kernel { bytes: 8 }) {
    ///     numbers.host_mut::<f32>()?.reverse();
    /// }
    /// # Ok::<(), hexagram_physical::Error>(())
    /// ```
    pub fn computes(&self, work: impl FnOnce() -> Work) -> bool {
        runtime::charge(work);
        self.has_content()
    }

    /// Returns false if memory of this queue has sizes but no content, such as that of models in a simulation.
    pub fn has_content(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.has_content())
    }

    /// Makes a program ready, so that its first launch is as quick as the others.
    ///
    /// The driver of a GPU compiles a module when it is loaded, which takes up to seconds, and may wait for work in
    /// progress. Therefore, prepare known programs before ranks wait for each other.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Usage`] if the device cannot run the program.
    pub fn prepare(&self, program: &Program) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |queue| queue.prepare(program))
    }

    /// Makes the programs of a codec ready, for `len` elements, as [`Queue::prepare`] does.
    ///
    /// # Errors
    /// As [`Queue::prepare`].
    pub fn prepare_codec(&self, codec: &dyn Codec, len: usize) -> Result<()> {
        if self.is_host() {
            return Ok(());
        }
        let decode = |weight| codec.decode_program(len, weight);
        let programs = [codec.encode_program(len, 0), decode(None), decode(Some(1.0))];
        programs.iter().flatten().try_for_each(|program| self.prepare(program))
    }

    /// Returns a timestamp in the work of the queue, after all earlier work. `None` on the host, whose clock is
    /// sufficient, and for a device without timestamps.
    ///
    /// ```
    /// use hexagram_physical::device::Queue;
    /// use std::time::Duration;
    ///
    /// /// Tells how long a queue takes for some work, if its device has a clock.
    /// fn measure(queue: &Queue, enqueue: impl FnOnce()) -> Option<Duration> {
    ///     let begun = queue.timestamp()?;
    ///     enqueue();
    ///     let done = queue.timestamp()?;
    ///     done.wait(Duration::from_secs(60));
    ///     Some(done.moment()? - begun.moment()?)
    /// }
    /// assert_eq!(measure(&Queue::host(), || ()), None);
    /// ```
    pub fn timestamp(&self) -> Option<Arc<dyn Timestamp>> {
        self.0.as_ref().and_then(|queue| queue.timestamp())
    }

    /// Sets the longest time that the program waits for the work of the queue, here and in accesses to elements.
    /// Initially that of `HEXAGRAM_DEADLINE`, or 300 s; the operation deadline once a communicator has [memory on the
    /// queue](crate::transport::devices::Devices::attach).
    pub fn set_limit(&self, limit: Duration) {
        self.0.iter().for_each(|queue| queue.set_limit(limit));
    }
}

/// Handles are equal if they are of one queue.
impl PartialEq for Queue {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            (mine, theirs) => mine.is_none() && theirs.is_none(),
        }
    }
}

impl Eq for Queue {}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.name())
    }
}

/// Memory of a device, allocated by its queue.
pub struct Allocation {
    /// Address of the first byte, which only the device may follow.
    pub address: NonNull<u8>,
    /// Owner of the memory, which is freed when it is dropped. Work in flight keeps it.
    pub keeper: Keeper,
}

/// Ordered work on one device other than the host.
///
/// Work runs in the order of enqueueing, at any later time. It holds its [`Span`]s until it is done, and has dropped them when
/// an event that is recorded later happens; the keepers of memory from other libraries may be dropped slightly later. Callers
/// have checked types and lengths, and have made the queue [wait](DeviceQueue::wait) as necessary. The bits of every result are
/// those of the host kernels.
pub trait DeviceQueue: Any + Send + Sync {
    /// Returns the name of the device. Queues with equal names reach each other's memory and wait for each other's
    /// events.
    fn device(&self) -> &str;

    /// Creates another queue of the same device, whose work is independent of this one.
    ///
    /// # Errors
    /// [`Error::System`] if the device has no more.
    fn another(&self) -> Result<Queue>;

    /// Prepares a program, so that its first launch is as fast as later ones: a device may have to compile it. The
    /// default does nothing.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::Usage`] if the device cannot run the program.
    fn prepare(&self, _program: &Program) -> Result<()> {
        Ok(())
    }

    /// Allocates `bytes` bytes that are zero for all work that is enqueued later.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    fn alloc(&self, bytes: usize) -> Result<Allocation>;

    /// Returns host memory with fast copies, with arbitrary content. Called for every message: a device with
    /// expensive host memory should reuse it, and need not clear it.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    fn host_memory(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Buffer::zeroed(dtype, len)
    }

    /// Copies host bytes to the first bytes of `to` on the device, and drops the view when the copy is complete.
    fn copy_up(&self, from: ReadView, to: Span);

    /// Copies the first bytes of `from` to host memory, as many as it holds. Drops the view before any event that is recorded
    /// later happens.
    fn copy_down(&self, from: Span, to: WriteView);

    /// Sets every element to 0.
    fn clear(&self, to: Span);

    /// Copies: `to ← from`.
    fn copy(&self, from: Span, to: Span);

    /// Combines: `to ← to ∘ from`. See [`WriteView::reduce`].
    fn reduce(&self, op: ReduceOp, from: Span, to: Span);

    /// Multiplies: `to ← factor × to`. See [`WriteView::scale`].
    fn scale(&self, factor: f64, to: Span);

    /// Adds a multiple: `to ← to + weight × from`. See [`WriteView::add_scaled`].
    fn add_scaled(&self, weight: f64, from: Span, to: Span);

    /// Stores a weighted sum: `to ← Σ weight × term`, where `None` is the previous value of `to`. See
    /// [`WriteView::weighted_sum`].
    fn weighted_sum(&self, terms: Vec<(f64, Option<Span>)>, to: Span);

    /// Encodes `from` to the first [`Codec::encoded_len`] bytes of `to`, for a codec whose size follows from the length.
    /// Returns false without any effect if it has no kernel for this codec: then the host encodes.
    fn encode(&self, codec: &dyn Codec, from: Span, to: Span, seed: u64) -> bool;

    /// Decodes the message `from`: `to ← to + weight × decode(from)`, or `to ← decode(from)` without a weight. Returns false
    /// without any effect if it has no kernel for this codec: then the host decodes.
    fn decode(&self, codec: &dyn Codec, from: Span, weight: Option<f32>, to: Span) -> bool;

    /// Returns true if it has a program for a kernel. Called before operands are copied from another device for it.
    fn runs(&self, kernel: &dyn Kernel) -> bool {
        kernel.program().is_some()
    }

    /// Runs a kernel that reads and writes these. Returns false without any effect if it has no program for it: then the host
    /// runs it.
    fn run(&self, kernel: &Arc<dyn Kernel>, reads: Vec<Span>, writes: Vec<Span>) -> bool;

    /// Returns false if its memory has sizes but no content.
    fn has_content(&self) -> bool {
        true
    }

    /// Called for each copy of `bytes` bytes to the host that a caller waits for and that is not a message: because the program
    /// accesses elements, or the device has no kernel for the work. For a device that counts them.
    fn count_copy_down(&self, _bytes: usize) {}

    /// Returns an event that happens when all work that was enqueued so far is done. It carries the failure that the
    /// queue has then.
    fn record(&self) -> Arc<dyn Event>;

    /// Returns a timestamp in the work of the queue. The default is `None`, for a device that follows the host clock,
    /// or has no timestamps.
    fn timestamp(&self) -> Option<Arc<dyn Timestamp>> {
        None
    }

    /// Makes later work wait for an event of a queue of this device.
    fn wait(&self, event: &Arc<dyn Event>);

    /// Does the same for work that reads memory written before the event: the queue adopts the failure of the event,
    /// unless it has one.
    fn wait_to_read(&self, event: &Arc<dyn Event>);

    /// Returns the longest time that the program waits for the queue's work.
    fn limit(&self) -> Duration {
        deadline::at_first()
    }

    /// Sets that time.
    fn set_limit(&self, _limit: Duration) {}

    /// Takes the first failure of work that is done.
    fn take_failure(&self) -> Option<Failure>;
}

/// A point in the work of a queue.
pub trait Event: Any + Send + Sync {
    /// Returns true once all work up to the event is done.
    fn has_happened(&self) -> bool;

    /// Waits until the event happens, and returns true, or until `at_most` has passed.
    fn wait(&self, at_most: Duration) -> bool;

    /// Returns true once it is known whether the event carries a failure. Called after it has happened, for a device
    /// that detects failures later.
    fn is_settled(&self) -> bool {
        true
    }

    /// Returns the failure that the event carries. Known after it has happened and is settled.
    fn failure(&self) -> Option<Failure>;

    /// Rings `bell` when the event happens, or immediately if it has happened.
    fn ring(&self, bell: Arc<dyn Bell>);
}

impl dyn Event {
    /// Returns the event with the type of its device, if that is `E`.
    pub fn downcast<E: Event>(&self) -> Option<&E> {
        let event: &dyn Any = self;
        event.downcast_ref()
    }
}

/// A failure in the work of a queue.
#[derive(Debug, Clone)]
pub enum Failure {
    /// A codec refused to encode or decode.
    Refused {
        /// Name of the codec.
        codec: String,
        /// Reason of the codec. Elements count from the beginning of their memory.
        refusal: CodecError,
    },
    /// Something else, such as a fault of the device.
    Fault(Error),
}

impl Failure {
    /// Returns the failure as an error for a caller that waits for the queue of `device`.
    pub fn into_error(self, device: &str) -> Error {
        match self {
            Failure::Refused { codec, refusal } => {
                let remedy = match refusal {
                    CodecError::NotFinite { .. } => {
                        "check why training diverges, or choose a codec that propagates or saturates"
                    }
                    CodecError::Damaged { .. } => "use the same codec on all ranks, and correct the codec",
                };
                Error::usage(format!("{codec} on {device}: {refusal}"), remedy)
            }
            Failure::Fault(error) => error,
        }
    }
}

/// Returns the host memory of a queue, after a check that it is host memory.
pub(crate) fn host_memory(queue: &dyn DeviceQueue, dtype: DType, len: usize) -> Result<Buffer> {
    let buffer = queue.host_memory(dtype, len)?;
    if buffer.queue().is_host() {
        return Ok(buffer);
    }
    let what = format!("{} returned device memory as host memory", queue.device());
    Err(Error::usage(what, "return a host buffer from DeviceQueue::host_memory"))
}
