//! Memory of Python objects as buffers, without copies: what an argument is, and what an operation gets of it.
//!
//! An argument is a [`Span`] (an address and what keeps it), a [`Memory`] that the other ranks of this host can read, or
//! anything with the buffer protocol or DLPack. In each case the operation holds what keeps the elements until it ends,
//! whatever the program drops meanwhile.

mod buffer_protocol;
mod dlpack;
pub(crate) mod export;
pub(crate) mod kept;
mod registered;
mod span;
mod views;

pub(crate) use registered::Memory;
pub(crate) use span::Span;

use crate::error::{exception, usage};
use buffer_protocol::View;
use dlpack::Capsule;
use hexagram::{Buffer, DType, Error, Queue};
use kept::Kept;
use pyo3::intern;
use pyo3::prelude::*;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Place of a buffer that operations take and give back.
type Home = Arc<Mutex<Option<Buffer>>>;

/// Buffer that an operation has of an argument, for as long as it runs.
pub(crate) struct Operand {
    buffer: Buffer,
    home: Option<Home>,
    /// Addresses that it takes; none of registered memory, which only one operand has at a time.
    extent: Range<usize>,
}

/// Elements that somebody keeps.
struct Elements {
    address: usize,
    dtype: DType,
    len: usize,
    writable: bool,
    kept: Kept,
}

impl Operand {
    /// Returns elements for an operation to read.
    pub(crate) fn input(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(argument, false)
    }

    /// Returns elements for an operation to change. Fails if nobody may write them.
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

    /// Returns the elements in memory of their own where they share some with what the operation changes: a rank's part of
    /// a tensor may be gathered in that tensor.
    pub(crate) fn apart_from(self, py: Python<'_>, changed: &Self) -> PyResult<Self> {
        if self.extent.start >= changed.extent.end || changed.extent.start >= self.extent.end {
            return Ok(self);
        }
        let copy = || {
            let own = Buffer::zeroed(self.buffer.dtype(), self.buffer.len())?;
            own.write_all()?.copy_from(&self.buffer.read_all()?)?;
            Ok(own)
        };
        let buffer = copy().map_err(|error: Error| exception(py, &error))?;
        Ok(Operand { buffer, home: None, extent: 0..0 })
    }
}

impl Elements {
    fn into_buffer(self) -> Result<Buffer, Error> {
        let Elements { address, dtype, len, kept, .. } = self;
        let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) else {
            return match len {
                0 => Buffer::zeroed(dtype, 0),
                _ => Err(Error::usage(format!("{len} elements at address 0"), "pass their address")),
            };
        };
        // SAFETY: whoever gave the address says that so many elements are there as long as what is kept, and that
        // nobody else reaches them while the operation runs: the documentation of the package asks for it.
        unsafe { Buffer::over_foreign(&Queue::host(), address, dtype, len, Arc::new(kept)) }
    }
}

/// Returns a buffer over the elements of an argument, which it keeps, to read. Registered memory is read as any other.
pub(crate) fn lent_to_read(argument: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    lend(argument, false)
}

/// Returns a buffer as [`lent_to_read`] does, to change. Fails if nobody may write the elements.
pub(crate) fn lent_to_write(argument: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    lend(argument, true)
}

/// Returns a buffer of its own with these bytes as its elements.
pub(crate) fn copied(dtype: DType, bytes: &[u8]) -> Result<Buffer, Error> {
    let buffer = Buffer::zeroed(dtype, bytes.len() / dtype.size())?;
    buffer.write_all()?.copy_from_bytes(bytes)?;
    Ok(buffer)
}

/// Returns a buffer over the elements of an argument.
fn lend(argument: &Bound<'_, PyAny>, writes: bool) -> PyResult<Buffer> {
    find_for(argument, writes)?.into_buffer().map_err(|error| exception(argument.py(), &error))
}

/// Returns the elements of an argument to read, or to change. Fails if they are read-only then.
fn find_for(argument: &Bound<'_, PyAny>, writes: bool) -> PyResult<Elements> {
    let elements = find(argument)?;
    if writes && !elements.writable {
        let what = format!("{} is read-only, and the result goes into it", name_of(argument));
        return Err(usage(argument.py(), what, "pass a copy that can be written"));
    }
    Ok(elements)
}

/// Returns the elements of an argument.
fn find(argument: &Bound<'_, PyAny>) -> PyResult<Elements> {
    let py = argument.py();
    if let Ok(span) = argument.cast_exact::<Span>() {
        return Ok(span.get().elements(py));
    }
    if let Ok(memory) = argument.cast_exact::<Memory>() {
        return Ok(memory.get().elements(argument.clone().unbind()));
    }
    if View::is_offered_by(argument) {
        return View::of(argument)?.into_elements(argument);
    }
    if argument.hasattr(intern!(py, "__dlpack__"))? {
        return Capsule::of(argument)?.into_elements(argument);
    }
    let what = format!("{} has neither DLPack nor the buffer protocol", name_of(argument));
    Err(usage(py, what, "pass a tensor, an array, a bytearray or a Span"))
}

/// Returns the name of an argument's type, for messages.
fn name_of(argument: &Bound<'_, PyAny>) -> String {
    let name = argument.get_type().name();
    name.map_or_else(|_| "the argument".to_owned(), |name| format!("a {name}"))
}

/// Takes a buffer from its place.
fn take(home: &Home) -> Result<Buffer, Error> {
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
