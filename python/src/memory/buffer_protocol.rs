//! The buffer protocol: NumPy arrays, `array`, `bytearray`, `memoryview`, `mmap`.
//!
//! Its functions are in every Python since 3.10, and in the stable interface since 3.11, with the same layout. So they
//! are declared here.

use super::elements_owner::{ElementsOwner, OwnerKind};
use super::{OwnedElements, name_of};
use crate::error::usage;
use crate::values::dtype::all_dtypes;
use hexagram::{DType, Queue};
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use std::ffi::{CStr, c_char, c_int, c_void};

/// A view with its shape, strides and format, read-only or not: `PyBUF_FULL_RO`.
const FULL_READ_ONLY: c_int = 0x011c;

/// `Py_buffer`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) address: *mut c_void,
    pub(super) object: *mut PyObject,
    pub(super) bytes: Py_ssize_t,
    pub(super) item_bytes: Py_ssize_t,
    pub(super) read_only: c_int,
    pub(super) dimensions: c_int,
    pub(super) format: *const c_char,
    pub(super) shape: *const Py_ssize_t,
    pub(super) strides: *const Py_ssize_t,
    pub(super) suboffsets: *const Py_ssize_t,
    pub(super) internal: *mut c_void,
}

unsafe extern "C" {
    fn PyObject_CheckBuffer(object: *mut PyObject) -> c_int;
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut Raw, flags: c_int) -> c_int;
    fn PyBuffer_IsContiguous(view: *const Raw, order: c_char) -> c_int;
    fn PyBuffer_Release(view: *mut Raw);
}

/// A view of the memory of an object, released when it is dropped: only with the interpreter lock.
#[derive(Debug)]
pub(crate) struct ObjectView(Box<Raw>);

// SAFETY: a view is a description that does not change, and is released with the interpreter lock.
unsafe impl Send for ObjectView {}
// SAFETY: as above.
unsafe impl Sync for ObjectView {}

impl ObjectView {
    /// Returns true if the object supports the protocol.
    pub(super) fn is_offered_by(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object is alive, and this thread holds the interpreter lock.
        unsafe { PyObject_CheckBuffer(object.as_ptr()) == 1 }
    }

    /// Requests a view of the memory of an object.
    pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut raw = Box::new(Raw {
            address: std::ptr::null_mut(),
            object: std::ptr::null_mut(),
            bytes: 0,
            item_bytes: 0,
            read_only: 1,
            dimensions: 0,
            format: std::ptr::null(),
            shape: std::ptr::null(),
            strides: std::ptr::null(),
            suboffsets: std::ptr::null(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: the object is alive, this thread holds the interpreter lock, and the view does not move until it is
        // released.
        match unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, FULL_READ_ONLY) } {
            0 => Ok(ObjectView(raw)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// Returns the elements of the view, which own it from then on.
    pub(super) fn into_elements(self, object: &Bound<'_, PyAny>) -> PyResult<OwnedElements> {
        let py = object.py();
        // SAFETY: the view was filled in.
        if unsafe { PyBuffer_IsContiguous(&raw const *self.0, b'C' as c_char) } != 1 {
            let what = format!("{} is not contiguous", name_of(object));
            return Err(usage(py, what, "pass a contiguous copy, as `numpy.ascontiguousarray` makes"));
        }
        let dtype = dtype_of(self.format(), self.0.item_bytes).ok_or_else(|| {
            let what = format!("{} has elements of the type `{}`", name_of(object), self.format());
            usage(py, what, format!("convert them to one of {}", all_dtypes()))
        })?;
        Ok(OwnedElements {
            address: self.0.address.expose_provenance(),
            dtype,
            len: usize::try_from(self.0.bytes).unwrap_or(0) / dtype.size(),
            writable: self.0.read_only == 0,
            queue: Queue::host(),
            kept: ElementsOwner::new(OwnerKind::Other(Box::new(self))),
        })
    }

    fn format(&self) -> &str {
        if self.0.format.is_null() {
            return "B";
        }
        // SAFETY: a non-null format is a string that lives as long as the view.
        unsafe { CStr::from_ptr(self.0.format) }.to_str().unwrap_or("?")
    }
}

impl Drop for ObjectView {
    fn drop(&mut self) {
        // SAFETY: the view was filled in, and `ElementsOwner` drops it with the interpreter lock held.
        unsafe { PyBuffer_Release(&raw mut *self.0) }
    }
}

/// Returns the element type for a format of the module `struct`, if it is supported.
fn dtype_of(format: &str, size: Py_ssize_t) -> Option<DType> {
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let letter = format.strip_prefix(['@', '=', native]).unwrap_or(format);
    match (letter, size) {
        ("B", 1) => Some(DType::U8),
        ("b", 1) => Some(DType::I8),
        ("?", 1) => Some(DType::Bool),
        ("h", 2) => Some(DType::I16),
        ("i" | "l" | "q", 4) => Some(DType::I32),
        ("i" | "l" | "q", 8) => Some(DType::I64),
        ("e", 2) => Some(DType::F16),
        ("f", 4) => Some(DType::F32),
        ("d", 8) => Some(DType::F64),
        _ => None,
    }
}
