//! Buffers for what is on its way, kept for the next use: fresh memory costs more than the copy into it.

use crate::{Buffer, DType, Device, Host, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers of one type, and of one length or shorter. As many as were ever needed at once.
pub(super) struct Spares {
    dtype: DType,
    len: usize,
    buffers: Mutex<Vec<Arc<Buffer>>>,
}

impl Spares {
    pub(super) fn of(dtype: DType, len: usize) -> Self {
        Spares { dtype, len, buffers: Mutex::default() }
    }

    /// A buffer that nobody else has, with any content. It comes back by being dropped.
    pub(super) fn take(&self) -> Result<Arc<Buffer>> {
        self.room(self.len)
    }

    /// The same, with room for `len` elements, which may be fewer: the next power of two, so that there are few lengths.
    pub(super) fn room(&self, len: usize) -> Result<Arc<Buffer>> {
        let len = len.checked_next_power_of_two().unwrap_or(len).min(self.len);
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |buffer: &&Arc<Buffer>| buffer.len() == len && Arc::strong_count(buffer) == 1;
        if let Some(free) = buffers.iter().find(free) {
            return Ok(Arc::clone(free));
        }
        let buffer = Arc::new(Host.alloc(self.dtype, len)?);
        buffers.push(Arc::clone(&buffer));
        Ok(buffer)
    }

    /// A copy of a buffer of this type and length.
    pub(super) fn copy_of(&self, from: &Buffer) -> Result<Arc<Buffer>> {
        let copy = self.take()?;
        copy_all(from, &copy)?;
        Ok(copy)
    }
}

/// `to ← from`.
pub(super) fn copy_all(from: &Buffer, to: &Buffer) -> Result<()> {
    Host.copy(&from.read(0..from.len())?, &mut to.write(0..to.len())?)
}

/// `to ← to + weight × from`.
pub(super) fn add(weight: f64, from: &Buffer, to: &Buffer) -> Result<()> {
    Host.add_scaled(weight, &from.read(0..from.len())?, &mut to.write(0..to.len())?)
}

/// `to ← to × factor`.
pub(super) fn scale(factor: f64, to: &Buffer) -> Result<()> {
    if factor == 1.0 {
        return Ok(());
    }
    Host.scale(factor, &mut to.write(0..to.len())?)
}

/// `to ← 0`.
pub(super) fn clear(to: &Buffer) -> Result<()> {
    to.write(0..to.len())?.bytes_mut().fill(0);
    Ok(())
}
