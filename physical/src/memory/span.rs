//! Spans: references to memory that work in flight on a device reads and writes, or that contains the tensors of a
//! framework.

use super::dtype::DType;
use super::{BufferMemory, Keeper, LedgerEntry, MemoryOwner};
use crate::device::{AccessOrder, DeviceQueue, Queue};
use std::any::Any;
use std::sync::Arc;

/// A range of the memory of a buffer, which lives at least as long as this does.
///
/// It is not a lease: on a device, events order the work on it, see [`crate::device`]. For views of it in another
/// library, the code that hands it out defines when they may be used.
#[derive(Clone)]
pub struct Span {
    memory: Arc<BufferMemory>,
    start: usize,
    bytes: usize,
    dtype: DType,
}

impl Span {
    pub(super) fn new(lent: &LedgerEntry, dtype: DType) -> Self {
        Span { memory: Arc::clone(&lent.memory), start: lent.lease.start, bytes: lent.len(), dtype }
    }

    pub(super) fn whole(memory: &Arc<BufferMemory>, dtype: DType) -> Self {
        Span { memory: Arc::clone(memory), start: 0, bytes: memory.bytes, dtype }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes / self.dtype.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes from the beginning of the allocation to this range.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// Returns the address of the first byte, in host memory or to the device.
    pub fn address(&self) -> *mut u8 {
        self.memory.pointer.as_ptr().wrapping_add(self.start)
    }

    /// Returns the owner of the allocation, if that is a `T`: of the device, or of another library.
    pub fn keeper<T: Any>(&self) -> Option<&T> {
        let (MemoryOwner::Device(keeper) | MemoryOwner::Foreign(keeper)) = &self.memory.owner else {
            return None;
        };
        let keeper: &Keeper = keeper;
        (**keeper).downcast_ref()
    }

    /// Returns the first `bytes` of the range, or all if there are fewer.
    pub(crate) fn first(mut self, bytes: usize) -> Self {
        self.bytes = self.bytes.min(bytes);
        self
    }

    pub(crate) fn queue(&self) -> Queue {
        self.place().map_or_else(Queue::host, |(queue, _)| Queue::of(Arc::clone(queue)))
    }

    /// Returns the queue that writes this memory, and the order of work with it; `None` of host memory.
    pub(crate) fn place(&self) -> Option<(&Arc<dyn DeviceQueue>, &AccessOrder)> {
        self.memory.place.as_ref().map(|place| (&place.queue, &place.order))
    }
}
