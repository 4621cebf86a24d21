//! Reusable buffers for values and messages in transit: allocating memory costs more than copying into it.

use crate::{Buffer, DType, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of one type, with at most one length. The number of buffers grows to the maximum in use at the same time.
pub(super) struct BufferPool {
    /// An empty buffer on the device of the others.
    place: Buffer,
    dtype: DType,
    len: usize,
    buffers: Mutex<Vec<Arc<Buffer>>>,
}

impl BufferPool {
    /// Creates a pool of buffers on the device of `served`.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_same_device`].
    pub(super) fn same_device(served: &Buffer, dtype: DType, len: usize) -> Result<Self> {
        Ok(BufferPool { place: served.zeroed_same_device(dtype, 0)?, dtype, len, buffers: Mutex::default() })
    }

    /// Returns an unused buffer with any content. Dropping it returns it to the pool.
    pub(super) fn take(&self) -> Result<Arc<Buffer>> {
        self.take_len(self.len)
    }

    /// Returns an unused buffer with any content and room for `len` elements. Its length is the next power of two, to
    /// keep the number of different lengths low.
    pub(super) fn take_len(&self, len: usize) -> Result<Arc<Buffer>> {
        let len = len.checked_next_power_of_two().unwrap_or(len).min(self.len);
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |buffer: &&Arc<Buffer>| buffer.len() == len && Arc::strong_count(buffer) == 1;
        if let Some(free) = buffers.iter().find(free) {
            return Ok(Arc::clone(free));
        }
        let buffer = Arc::new(self.place.zeroed_same_device(self.dtype, len)?);
        buffers.push(Arc::clone(&buffer));
        Ok(buffer)
    }

    /// Returns a copy of a buffer of this type and length.
    pub(super) fn copy_of(&self, from: &Buffer) -> Result<Arc<Buffer>> {
        let copy = self.take()?;
        copy.write_all()?.copy_from(&from.read_all()?)?;
        Ok(copy)
    }

    /// Returns an empty buffer on the device of the others.
    pub(super) fn empty(&self) -> Result<Arc<Buffer>> {
        self.place.zeroed_same_device(self.dtype, 0).map(Arc::new)
    }
}
