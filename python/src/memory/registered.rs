//! Memory that the other ranks of this host can read: collectives on it need no staging copies.

use super::elements_owner::{ElementsOwner, OwnerKind};
use super::export::{DlpackRequest, HOST_MEMORY, LentElements, capsule};
use super::{BufferSlot, OwnedElements};
use crate::error::usage;
use hexagram::{Buffer, DType, Queue};
use pyo3::ffi::Py_ssize_t;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex};

/// Elements in memory that the other ranks of this host can read directly.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Memory {
    home: BufferSlot,
    address: usize,
    elements: usize,
    dtype: DType,
    /// Number of elements, and bytes of each, to which views point.
    shape: Py_ssize_t,
    stride: Py_ssize_t,
}

#[pymethods]
impl Memory {
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    #[getter]
    fn dtype(&self) -> String {
        self.dtype.to_string()
    }

    fn __len__(&self) -> usize {
        self.elements
    }

    fn __repr__(&self) -> String {
        format!("Memory({:?}, {})", self.dtype.to_string(), self.elements)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        HOST_MEMORY
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Host memory has no stream.
        drop(stream);
        let lent = LentElements {
            address: self.address,
            elements: self.elements,
            dtype: self.dtype,
            device: HOST_MEMORY,
            keep: Arc::clone(&self.home) as Arc<dyn std::any::Any + Send + Sync>,
        };
        capsule(py, &lent, DlpackRequest { max_version, device: dl_device, copy })
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let code = match self.dtype {
            DType::BF16 => {
                let what = "the array interface has no bfloat16";
                return Err(usage(py, what, "import it by DLPack, as `torch.from_dlpack` does"));
            }
            DType::U8 => 'u',
            DType::Bool => 'b',
            dtype if dtype.is_float() => 'f',
            _ => 'i',
        };
        let described = PyDict::new(py);
        described.set_item("version", 3)?;
        described.set_item("shape", (self.elements,))?;
        described.set_item("typestr", format!("<{code}{}", self.dtype.size()))?;
        described.set_item("data", (self.address, false))?;
        Ok(described)
    }
}

impl Memory {
    /// Passes a registered buffer to Python.
    pub(crate) fn new(buffer: Buffer) -> Self {
        let elements = buffer.len();
        let address = buffer.address().as_ptr().expose_provenance();
        let dtype = buffer.dtype();
        // Memory cannot have more bytes than that.
        let shape = Py_ssize_t::try_from(elements).unwrap_or(Py_ssize_t::MAX);
        let stride = Py_ssize_t::try_from(dtype.size()).unwrap_or(1);
        Memory { home: Arc::new(Mutex::new(Some(buffer))), address, elements, dtype, shape, stride }
    }

    /// Returns the elements, which keep this object.
    pub(super) fn elements(&self, object: Py<PyAny>) -> OwnedElements {
        let kept = ElementsOwner::new(OwnerKind::Object(object));
        OwnedElements {
            address: self.address,
            dtype: self.dtype,
            len: self.elements,
            writable: true,
            queue: Queue::host(),
            kept,
        }
    }

    /// Returns the number of elements and the size of each in bytes; the references live as long as the memory.
    pub(super) fn layout(&self) -> (&Py_ssize_t, &Py_ssize_t) {
        (&self.shape, &self.stride)
    }

    /// Returns the address and the type of the elements.
    pub(super) fn place(&self) -> (usize, DType) {
        (self.address, self.dtype)
    }

    /// Returns the owner of the buffer while no operation uses it.
    pub(super) fn home(&self) -> &BufferSlot {
        &self.home
    }
}
