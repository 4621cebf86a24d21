//! Buffers for values and messages on their way, kept for the next use: fresh memory costs more than the copy into it.

use crate::{Buffer, DType, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of one type, and of one length or shorter: as many as were ever needed at once.
pub(super) struct BufferPool {
    /// An empty buffer in the memory of which the others are.
    place: Buffer,
    dtype: DType,
    len: usize,
    buffers: Mutex<Vec<Arc<Buffer>>>,
}

impl BufferPool {
    /// Creates a pool of buffers beside `served`.
    ///
    /// # Errors
    /// As [`Buffer::beside`].
    pub(super) fn beside(served: &Buffer, dtype: DType, len: usize) -> Result<Self> {
        Ok(BufferPool { place: served.beside(dtype, 0)?, dtype, len, buffers: Mutex::default() })
    }

    /// Returns a buffer that nobody else has, with any content. It comes back by being dropped.
    pub(super) fn take(&self) -> Result<Arc<Buffer>> {
        self.take_len(self.len)
    }

    /// Returns a buffer that nobody else has, with any content and room for `len` elements, which may be fewer than
    /// those of the others: the next power of two, so that there are few lengths.
    pub(super) fn take_len(&self, len: usize) -> Result<Arc<Buffer>> {
        let len = len.checked_next_power_of_two().unwrap_or(len).min(self.len);
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |buffer: &&Arc<Buffer>| buffer.len() == len && Arc::strong_count(buffer) == 1;
        if let Some(free) = buffers.iter().find(free) {
            return Ok(Arc::clone(free));
        }
        let buffer = Arc::new(self.place.beside(self.dtype, len)?);
        buffers.push(Arc::clone(&buffer));
        Ok(buffer)
    }

    /// Returns a copy of a buffer of this type and length.
    pub(super) fn copy_of(&self, from: &Buffer) -> Result<Arc<Buffer>> {
        let copy = self.take()?;
        copy.write_all()?.copy_from(&from.read_all()?)?;
        Ok(copy)
    }

    /// Returns an empty buffer beside the others.
    pub(super) fn empty(&self) -> Result<Arc<Buffer>> {
        self.place.beside(self.dtype, 0).map(Arc::new)
    }
}
