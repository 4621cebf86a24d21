//! Tensors of a framework on a GPU, as buffers: an adapter uses this to copy between the framework's memory and its
//! own.
//!
//! ```text
//! exchange.receive()          the exchange's queue waits for what the framework has enqueued
//! exchange.borrow(tensor)     the tensor is a buffer of that queue
//! …                           work of ours reads and writes it
//! exchange.give_back()        the framework's stream waits for that queue
//! ```
//!
//! A framework frees a tensor in the order of its own stream. If that is a thread's default stream, it is the stream of the
//! thread that drops the tensor. So a tensor that work of this crate still reads is kept, and the next call on the framework's
//! thread drops it there.

use super::foreign::ForeignStream;
use crate::device::{Queue, Timestamp};
use crate::error::Result;
use crate::memory::Buffer;
use crate::memory::dtype::DType;
use crate::waiting::lock::lock;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

/// Tensor of a framework in the memory of a GPU.
///
/// # Safety
/// [`address`](Self::address) is the address of [`len`](Self::len) consecutive, initialised elements of type
/// [`dtype`](Self::dtype). They are in memory of the exchange's GPU, which lives as long as the tensor.
pub unsafe trait DeviceTensor: Send + Sync + 'static {
    /// Returns the address of the first element; any address for a tensor without elements.
    fn address(&self) -> NonNull<u8>;

    /// Returns the type of the elements.
    fn dtype(&self) -> DType;

    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns true if the tensor is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A framework's tensors, its stream, and a queue that works on them.
///
/// All calls are made on the thread on which the framework computes.
pub struct Exchange<T: DeviceTensor> {
    queue: Queue,
    stream: ForeignStream,
    returned: Arc<ReturnedTensors<T>>,
}

/// Tensors that are no longer in use.
type ReturnedTensors<T> = Mutex<Vec<T>>;

impl<T: DeviceTensor> Exchange<T> {
    /// Creates an exchange between a framework that works on `stream` and queues of the same GPU as `queue`; `queue`
    /// must have no other use.
    pub fn new(queue: Queue, stream: ForeignStream) -> Self {
        Exchange { queue, stream, returned: Arc::default() }
    }

    /// Returns the queue that works on the framework's tensors.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Makes the queue wait for the framework's work so far.
    ///
    /// # Errors
    /// As [`ForeignStream::make_queue_wait`].
    pub fn receive(&self) -> Result<()> {
        self.drop_returned();
        self.stream.make_queue_wait(&self.queue)
    }

    /// Returns a tensor as a buffer of the queue. The tensor is kept as long as work of this crate uses it.
    ///
    /// # Errors
    /// As [`Buffer::over_foreign`].
    ///
    /// # Safety
    /// [`receive`](Self::receive) was called after the framework enqueued the work that writes the tensor and, to
    /// write the buffer, the work that reads it. Until [`give_back`](Self::give_back), the framework enqueues no
    /// other work that writes the tensor or reads its new values. While a queue other than the exchange's reads the
    /// tensor, the framework enqueues no work that writes it.
    pub unsafe fn borrow(&self, tensor: T) -> Result<Buffer> {
        let address = tensor.address();
        let dtype = tensor.dtype();
        let len = tensor.len();
        let keeper =
            Arc::new(TensorReturn { tensor: Some(tensor), returned: Arc::downgrade(&self.returned) });
        // SAFETY: the tensor has these elements as long as the keeper owns it, and the caller guarantees the order.
        unsafe { Buffer::over_foreign(&self.queue, address, dtype, len, keeper) }
    }

    /// Makes the framework's stream wait for the queue's work so far.
    ///
    /// # Errors
    /// As [`ForeignStream::wait_for`].
    pub fn give_back(&self) -> Result<()> {
        self.drop_returned();
        self.stream.wait_for(&self.queue)
    }

    /// Returns a point in the work of the framework's stream, like [`ForeignStream::timestamp`].
    pub fn timestamp(&self) -> Arc<dyn Timestamp> {
        self.stream.timestamp()
    }

    /// Frees unused tensors, without holding the lock: the framework may call back.
    fn drop_returned(&self) {
        let returned = std::mem::take(&mut *lock(&self.returned));
        drop(returned);
    }
}

impl<T: DeviceTensor> Drop for Exchange<T> {
    fn drop(&mut self) {
        // A failure was reported before, or the user of the results gets it.
        let _ = self.queue.check();
        self.drop_returned();
    }
}

/// Keeper of a tensor, which returns the tensor when dropped. If the exchange is gone, it drops the tensor itself.
struct TensorReturn<T> {
    tensor: Option<T>,
    returned: Weak<ReturnedTensors<T>>,
}

impl<T> Drop for TensorReturn<T> {
    fn drop(&mut self) {
        if let (Some(returned), Some(tensor)) = (self.returned.upgrade(), self.tensor.take()) {
            lock(&returned).push(tensor);
        }
    }
}
