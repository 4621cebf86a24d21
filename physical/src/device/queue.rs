//! Queues: ordered work on one device.
//!
//! Work is *enqueued*: a call returns once it is ordered behind the earlier work of its queue, and nobody awaits it. A
//! buffer belongs to one queue, which does all work that writes it. Where work reads memory of another queue, and where
//! memory is written that another queue has read, the queue waits for an [`Event`] of the other one; `order` keeps
//! which. The host's queue has nothing to enqueue: its work is done when the call returns, and it costs nothing.
//!
//! A device implements [`DeviceQueue`] and [`Event`]. What stands above sees [`Queue`] alone, and hardly ever that:
//! scratch, state and snapshots are made [beside](crate::Buffer::beside) the buffer that they serve.
//!
//! # Failures
//! Work that runs late fails late, and what it should have written is wrong. A [`Failure`] goes wherever those bytes
//! go: a queue keeps its first one, an [`Event`] carries what its queue had kept by then, and a queue that waits for
//! the event [in order to read](DeviceQueue::wait_to_read) keeps that as its own. So a message does not leave the rank
//! if the event of its copy to the host carries a failure, whichever queue has failed. Access from the program,
//! [`Queue::check`] and [`Queue::refusal`] take the failure of their queue; events that were recorded before keep it. A
//! device whose kernels write an error word in its memory has one for each queue and event: `record` and `wait_to_read`
//! copy it in the order of their queue, and the host reads it when the event has happened. On the host, work fails at
//! once.
//!
//! So what a codec refuses is found within the operation, before the message leaves; it names this rank, and the
//! element as it lies in the device's memory, but neither tensor nor operation: the queue works for several. What is
//! part of no operation (windows, pairs, a parameter server) waits for the queue with [`Queue::refusal`], and names
//! what the host would.

use super::program::Program;
use super::{Kernel, Timestamp};
use crate::codec::{Codec, CodecError};
use crate::deadline;
use crate::dtype::{DType, ReduceOp};
use crate::error::{Error, Result};
use crate::memory::{Buffer, Keeper, ReadView, Span, WriteView};
use crate::runtime::{self, Work};
use crate::transport::Bell;
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

    /// Returns what to call the device in messages: `host`, `cuda:0`.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("host", |queue| queue.device())
    }

    /// Creates another queue of the same device and with the same [limit](Self::set_limit), for work that need not wait for
    /// this one's; the host's is the host's.
    ///
    /// # Errors
    /// [`Error::System`] if the device has no more.
    pub fn another(&self) -> Result<Queue> {
        let Some(queue) = &self.0 else { return Ok(Queue::host()) };
        let another = queue.another()?;
        another.set_limit(queue.limit());
        Ok(another)
    }

    /// Returns host memory from which and to which the queue's copies are quick, with any numbers in it.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn host_memory(&self, dtype: DType, len: usize) -> Result<Buffer> {
        self.0.as_ref().map_or_else(|| Buffer::zeroed(dtype, len), |queue| host_memory(&**queue, dtype, len))
    }

    /// Tells a simulated world of arithmetic that the host does for memory of this queue. Returns true if the host has to
    /// do it: false of memory that has sizes and no content, of whose elements it must not ask then.
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

    /// Returns false if memory of this queue has sizes and no content, as that of models in a simulation.
    pub fn has_content(&self) -> bool {
        self.0.as_ref().is_none_or(|queue| queue.has_content())
    }

    /// Makes a program ready, so that its first launch is as quick as the others.
    ///
    /// A GPU's driver compiles a module when it is loaded, which takes up to seconds, and may wait for work in flight. So
    /// whoever knows what will run prepares it before ranks wait for each other.
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

    /// Returns a point in the work of the queue behind all that it has so far, whose time becomes known. `None` on the host,
    /// where the clock tells it, and for a device that does not.
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

    /// Sets the longest time that the program waits for the queue's work: here, and where it looks at elements. That of
    /// `HEXAGRAM_DEADLINE` at first, or 300 s; the operation deadline once a communicator has
    /// [memory on the queue](crate::transport::Transport::attach).
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

/// Memory of a device, as its queue has allocated it.
pub struct Allocation {
    /// Address of the first byte, which only the device may follow.
    pub address: NonNull<u8>,
    /// Owner of the memory, which is freed when it is dropped. Work in flight keeps it.
    pub keeper: Keeper,
}

/// Ordered work on one device other than the host.
///
/// Work runs in the order in which it was enqueued, at any time from then on; it holds its [`Span`]s until it is done,
/// and has dropped them when an event that is recorded later happens; the keepers of other libraries' memory may go a
/// little later. Callers have checked types and lengths, and have let the queue [wait](DeviceQueue::wait) for what it
/// must. The bits of every result are those of the host's kernels.
pub trait DeviceQueue: Any + Send + Sync {
    /// Returns the name of the device. Queues with equal names reach each other's memory and wait for each other's
    /// events.
    fn device(&self) -> &str;

    /// Creates another queue of the same device, whose work waits for none of this one.
    ///
    /// # Errors
    /// [`Error::System`] if the device has no more.
    fn another(&self) -> Result<Queue>;

    /// Makes a program ready, so that its first launch is as quick as the others: a device may have to compile it. For a
    /// device that has nothing to do for that, this does nothing.
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

    /// Returns host memory from which and to which copies are quick, with any numbers in it. Called for every message: a
    /// device to which such memory is dear keeps what comes back, and need not clear it.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    fn host_memory(&self, dtype: DType, len: usize) -> Result<Buffer> {
        Buffer::zeroed(dtype, len)
    }

    /// Copies host bytes up to the first bytes of `to`, and drops the view when it has done so.
    fn copy_up(&self, from: ReadView, to: Span);

    /// Copies down to host bytes, equally many, and drops the view before any event that is recorded later happens.
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

    /// Stores a weighted sum: `to ← Σ weight × term`, where `None` is `to` as it was. See [`WriteView::weighted_sum`].
    fn weighted_sum(&self, terms: Vec<(f64, Option<Span>)>, to: Span);

    /// Encodes `from` to the first [`Codec::encoded_len`] bytes of `to`, for a codec whose size follows from the
    /// length. Returns false, having done nothing, if it has no kernel for this codec: then the host encodes.
    fn encode(&self, codec: &dyn Codec, from: Span, to: Span, seed: u64) -> bool;

    /// Decodes the message `from`: `to ← to + weight × decode(from)`, or `to ← decode(from)` without a weight. Returns
    /// false, having done nothing, if it has no kernel for this codec: then the host decodes.
    fn decode(&self, codec: &dyn Codec, from: Span, weight: Option<f32>, to: Span) -> bool;

    /// Returns true if it has a program for a kernel. Asked before operands are brought from another device for it.
    fn runs(&self, kernel: &dyn Kernel) -> bool {
        kernel.program().is_some()
    }

    /// Runs a kernel that reads and writes these. Returns false, having done nothing, if it has no program for it: then
    /// the host does it.
    fn run(&self, kernel: &Arc<dyn Kernel>, reads: Vec<Span>, writes: Vec<Span>) -> bool;

    /// Returns false if its memory has sizes and no content.
    fn has_content(&self) -> bool {
        true
    }

    /// Is told of a copy of `bytes` bytes to the host that somebody waits for, and that is no message: because the
    /// program looks at elements, or because there is no kernel. For a device that counts them.
    fn count_copy_down(&self, _bytes: usize) {}

    /// Returns an event that happens when all work that was enqueued so far is done. It carries the failure that the
    /// queue has then.
    fn record(&self) -> Arc<dyn Event>;

    /// Returns a point in the work of the queue, whose time becomes known. The default is `None`, for a device that works as
    /// the host's clock says, or cannot tell.
    fn timestamp(&self) -> Option<Arc<dyn Timestamp>> {
        None
    }

    /// Lets work that is enqueued from now on wait for an event of a queue of this device.
    fn wait(&self, event: &Arc<dyn Event>);

    /// Does the same for work that reads what was written before the event: the failure that the event carries is then
    /// this queue's, too, unless it has one.
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

    /// Returns true once it is known whether the event carries a failure. Asked once it has happened: for a device whose
    /// work may be found to have failed later than it is done.
    fn is_settled(&self) -> bool {
        true
    }

    /// Returns the failure that the event carries. Known once it has happened and is settled.
    fn failure(&self) -> Option<Failure>;

    /// Rings `bell` when the event happens, or at once if it has happened.
    fn ring(&self, bell: Arc<dyn Bell>);
}

impl dyn Event {
    /// Returns the event as what its device made it, if that is an `E`.
    pub fn downcast<E: Event>(&self) -> Option<&E> {
        let event: &dyn Any = self;
        event.downcast_ref()
    }
}

/// A failure in the work of a queue.
#[derive(Debug, Clone)]
pub enum Failure {
    /// A codec refused what it was to encode or decode.
    Refused {
        /// Name of the codec.
        codec: String,
        /// Reason of the codec. Elements count from the beginning of the memory in which they lie.
        refusal: CodecError,
    },
    /// Something else, such as a fault of the device.
    Fault(Error),
}

impl Failure {
    /// Returns the failure as the error of whoever waits for the queue of `device`.
    pub fn into_error(self, device: &str) -> Error {
        match self {
            Failure::Refused { codec, refusal } => {
                let remedy = match refusal {
                    CodecError::NotFinite { .. } => {
                        "see why training diverges, or choose a codec that propagates or saturates"
                    }
                    CodecError::Damaged { .. } => "see that all ranks use the same codec, and mend the codec",
                };
                Error::usage(format!("{codec} on {device}: {refusal}"), remedy)
            }
            Failure::Fault(error) => error,
        }
    }
}

/// Returns the host memory that a queue offers, after a look whether it is.
pub(crate) fn host_memory(queue: &dyn DeviceQueue, dtype: DType, len: usize) -> Result<Buffer> {
    let buffer = queue.host_memory(dtype, len)?;
    if buffer.queue().is_host() {
        return Ok(buffer);
    }
    let what = format!("{} has given its own memory for the host's", queue.device());
    Err(Error::usage(what, "let DeviceQueue::host_memory return a buffer of the host"))
}
