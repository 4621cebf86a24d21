//! Memory of Python objects as buffers, without copies: the arguments of operations, and their buffers.
//!
//! An argument is a [`Span`] (an address and its owner), a [`Memory`] that the other ranks of this host can read, or
//! any object with the buffer protocol or DLPack. In each case the operation keeps the owner of the elements until it
//! ends, even if the program drops it meanwhile.

mod buffer_protocol;
mod dlpack;
pub(crate) mod elements_owner;
pub(crate) mod export;
pub(crate) mod gpu;
mod registered;
mod span;
mod views;

pub(crate) use registered::Memory;
pub(crate) use span::Span;

use crate::error::{exception, usage};
use buffer_protocol::ObjectView;
use dlpack::Capsule;
use elements_owner::ElementsOwner;
use hexagram::{Buffer, DType, Error, Queue};
use pyo3::intern;
use pyo3::prelude::*;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Owner of a buffer that operations take and give back.
type BufferSlot = Arc<Mutex<Option<Buffer>>>;

/// Buffer of an argument, owned by an operation while it runs.
pub(crate) struct Operand {
    buffer: Buffer,
    home: Option<BufferSlot>,
    /// Address range of the operand; empty for registered memory, which only one operand uses at a time.
    extent: Range<usize>,
}

/// Elements with an owner.
struct OwnedElements {
    address: usize,
    dtype: DType,
    len: usize,
    writable: bool,
    /// Queue of the device that has the memory.
    queue: Queue,
    kept: ElementsOwner,
}

impl Operand {
    /// Returns elements for an operation to read.
    pub(crate) fn input(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(argument, false)
    }

    /// Returns elements for an operation to change. Fails if they are read-only.
    pub(crate) fn output(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(argument, true)
    }

    fn of(argument: &Bound<'_, PyAny>, writes: bool) -> PyResult<Self> {
        let py = argument.py();
        if let Ok(memory) = argument.cast_exact::<Memory>() {
            let home = memory.get().home();
            let buffer = take(home).map_err(|error| exception(py, &error))?;
            return Ok(Operand { buffer, home: Some(Arc::clone(home)), extent: 0..0 });
        }
        let elements = find_for(argument, writes)?;
        let extent = elements.address..elements.address + elements.len * elements.dtype.size();
        let buffer = elements.into_buffer().map_err(|error| exception(py, &error))?;
        Ok(Operand { buffer, home: None, extent })
    }

    /// Returns a copy of the elements if they overlap those that the operation changes: the part of a rank may be
    /// gathered into the tensor that contains it.
    pub(crate) fn apart_from(self, py: Python<'_>, changed: &Self) -> PyResult<Self> {
        if self.extent.start >= changed.extent.end || changed.extent.start >= self.extent.end {
            return Ok(self);
        }
        let buffer = self.buffer.copied().map_err(|error| exception(py, &error))?;
        Ok(Operand { buffer, home: None, extent: 0..0 })
    }
}

impl OwnedElements {
    fn into_buffer(self) -> Result<Buffer, Error> {
        let OwnedElements { address, dtype, len, queue, kept, .. } = self;
        let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) else {
            return match len {
                0 => Buffer::zeroed(dtype, 0),
                _ => Err(Error::usage(format!("{len} elements at address 0"), "pass their address")),
            };
        };
        // SAFETY: the caller guarantees that the elements at this address of the device live as long as the kept object,
        // and that no other code accesses them while the operation runs, as the documentation of the package requires.
        unsafe { Buffer::over_foreign(&queue, address, dtype, len, Arc::new(kept)) }
    }
}

/// Returns a read-only buffer over the elements of an argument, which it keeps. Registered memory is read like any
/// other.
pub(crate) fn lent_to_read(argument: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    lend(argument, false)
}

/// Returns a writable buffer like [`lent_to_read`]. Fails if the elements are read-only.
pub(crate) fn lent_to_write(argument: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    lend(argument, true)
}

/// Returns a new buffer with these bytes as its elements.
pub(crate) fn copied(dtype: DType, bytes: &[u8]) -> Result<Buffer, Error> {
    let buffer = Buffer::zeroed(dtype, bytes.len() / dtype.size())?;
    buffer.write_all()?.copy_from_bytes(bytes)?;
    Ok(buffer)
}

/// Returns a buffer over the elements of an argument.
fn lend(argument: &Bound<'_, PyAny>, writes: bool) -> PyResult<Buffer> {
    find_for(argument, writes)?.into_buffer().map_err(|error| exception(argument.py(), &error))
}

/// Returns the elements of an argument for reading or writing. Fails if they are read-only and `writes` is set.
fn find_for(argument: &Bound<'_, PyAny>, writes: bool) -> PyResult<OwnedElements> {
    let elements = find(argument)?;
    if writes && !elements.writable {
        let what = format!("{} is read-only, and the result goes into it", name_of(argument));
        return Err(usage(argument.py(), what, "pass a copy that can be written"));
    }
    Ok(elements)
}

/// Returns the elements of an argument.
fn find(argument: &Bound<'_, PyAny>) -> PyResult<OwnedElements> {
    let py = argument.py();
    if let Ok(span) = argument.cast_exact::<Span>() {
        return span.get().elements(py);
    }
    if let Ok(memory) = argument.cast_exact::<Memory>() {
        return Ok(memory.get().elements(argument.clone().unbind()));
    }
    if ObjectView::is_offered_by(argument) {
        return ObjectView::of(argument)?.into_elements(argument);
    }
    if argument.hasattr(intern!(py, "__dlpack__"))? {
        return Capsule::of(argument)?.into_elements();
    }
    let what = format!("{} has neither DLPack nor the buffer protocol", name_of(argument));
    Err(usage(py, what, "pass a tensor, an array, a bytearray or a Span"))
}

/// Returns the type name of an argument, for messages.
fn name_of(argument: &Bound<'_, PyAny>) -> String {
    let name = argument.get_type().name();
    name.map_or_else(|_| "the argument".to_owned(), |name| format!("a {name}"))
}

/// Takes a buffer from its owner.
fn take(home: &BufferSlot) -> Result<Buffer, Error> {
    let mut buffer = home.lock().unwrap_or_else(PoisonError::into_inner);
    buffer.take().ok_or_else(|| {
        Error::usage("this memory is in use by another operation", "wait for that operation first")
    })
}

impl Drop for Operand {
    fn drop(&mut self) {
        if let Some(home) = &self.home
            && let Ok(empty) = Buffer::zeroed(DType::U8, 0)
        {
            let buffer = std::mem::replace(&mut self.buffer, empty);
            *home.lock().unwrap_or_else(PoisonError::into_inner) = Some(buffer);
        }
    }
}

impl Deref for Operand {
    type Target = Buffer;
    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl DerefMut for Operand {
    fn deref_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }
}
