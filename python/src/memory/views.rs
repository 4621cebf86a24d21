//! Buffer protocol export: registered memory as a `memoryview` or a NumPy array, without copies.
//!
//! The stable interface has the slots of the protocol since Python 3.11, so PyO3 does not allow them in a wheel for
//! 3.10; types have accepted their numbers since 3.9. So they are passed to PyO3 here in the way its own macros expand.
//! If another version of PyO3 breaks this, delete the file: DLPack remains.

use super::Memory;
use super::buffer_protocol::Raw;
use hexagram::DType;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{Py_bf_getbuffer, PyObject, PyType_Slot};
use pyo3::impl_::pyclass::{PyClassImpl, PyClassItems};
use pyo3::prelude::*;
use std::ffi::{CStr, c_int, c_void};

/// The consumer requests the format: `PyBUF_FORMAT`.
const FORMAT: c_int = 0x4;
/// The consumer requests the shape: `PyBUF_ND`.
const SHAPE: c_int = 0x8;
/// The consumer requests shape and strides: `PyBUF_STRIDES`.
const STRIDES: c_int = 0x18;

pyo3::inventory::submit! {
    type Inventory = <Memory as PyClassImpl>::Inventory;
    Inventory::new(PyClassItems {
        methods: &[],
        slots: &[PyType_Slot { slot: Py_bf_getbuffer, pfunc: get_buffer as *mut c_void }],
    })
}

/// Fills in a view of a `Memory`, which keeps it alive.
///
/// # Safety
/// As `bf_getbuffer`: the thread holds the interpreter lock, the object is a `Memory`, and the view can be written.
unsafe extern "C" fn get_buffer(object: *mut PyObject, view: *mut Raw, flags: c_int) -> c_int {
    // SAFETY: Python calls it with the interpreter lock, an object of the type, and memory for a view.
    unsafe {
        (*view).object = std::ptr::null_mut();
        let py = Python::assume_attached();
        let object = Bound::from_borrowed_ptr(py, object);
        match filled(&object, flags) {
            Ok(raw) => {
                view.write(raw);
                0
            }
            Err(error) => {
                error.restore(py);
                -1
            }
        }
    }
}

fn filled(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Raw> {
    let memory = object.cast::<Memory>()?.get();
    let (address, dtype) = memory.place();
    // They are part of the object, which the view keeps alive.
    let (shape, stride) = memory.layout();
    let format = format_of(dtype).ok_or_else(|| {
        PyBufferError::new_err(format!("the buffer protocol has no {dtype}; import it by DLPack"))
    })?;
    let asked = |flag: c_int| flags & flag == flag;
    Ok(Raw {
        address: std::ptr::with_exposed_provenance_mut(address),
        object: object.clone().into_ptr(),
        bytes: shape * stride,
        item_bytes: *stride,
        read_only: 0,
        dimensions: 1,
        format: if asked(FORMAT) { format.as_ptr() } else { std::ptr::null() },
        shape: if asked(SHAPE) { shape } else { std::ptr::null() },
        strides: if asked(STRIDES) { stride } else { std::ptr::null() },
        suboffsets: std::ptr::null(),
        internal: std::ptr::null_mut(),
    })
}

/// Returns the format of an element type, as in the module `struct`.
fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::U8 => c"B",
        DType::I8 => c"b",
        DType::Bool => c"?",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        _ => return None,
    })
}
