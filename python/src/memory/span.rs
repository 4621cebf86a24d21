//! Spans: elements at a known address.

use super::elements_owner::{ElementsOwner, OwnerKind};
use super::{OwnedElements, gpu};
use crate::error::usage;
use crate::values::dtype::dtype;
use hexagram::{DType, Queue};
use pyo3::prelude::*;

/// Elements at an address: the cheapest argument. They are `elements` contiguous elements of a type such as `"f32"`.
/// `keep` is any object that owns them; an operation keeps it until it has ended. Without it, the caller must keep them
/// alive.
///
/// `gpu` is the number of the GPU that has the elements in its memory, and `stream` the `CUstream` handle of the stream that
/// writes and reads them, as `torch.cuda.Stream.cuda_stream`. An operation begins after all work that is on the stream by then.
/// Pass both to `make_stream_wait` before you enqueue work after the operation. Without `stream` it is the legacy default
/// stream of CUDA.
///
/// Raises `UsageError` for an unknown type, and for elements at address 0.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Span {
    address: usize,
    elements: usize,
    dtype: DType,
    keep: Option<Py<PyAny>>,
    /// Number and stream of the GPU; `None` for host memory.
    gpu: Option<(usize, usize)>,
}

#[pymethods]
impl Span {
    #[new]
    #[pyo3(signature = (address, elements, dtype, keep = None, *, gpu = None, stream = None))]
    fn new(
        py: Python<'_>,
        address: usize,
        elements: usize,
        dtype: &str,
        keep: Option<Py<PyAny>>,
        gpu: Option<usize>,
        stream: Option<usize>,
    ) -> PyResult<Self> {
        let dtype = self::dtype(py, dtype)?;
        if address == 0 && elements > 0 {
            return Err(usage(py, format!("{elements} elements at address 0"), "pass their address"));
        }
        if gpu.is_none() && stream.is_some() {
            return Err(usage(py, "a stream without a GPU", "pass the number of the GPU as `gpu`"));
        }
        let gpu = gpu.map(|gpu| (gpu, stream.unwrap_or(0)));
        Ok(Span { address, elements, dtype, keep, gpu })
    }

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
        format!("Span({:#x}, {}, {:?})", self.address, self.elements, self.dtype.to_string())
    }
}

impl Span {
    /// Returns the elements, kept by the owner in `keep`.
    pub(super) fn elements(&self, py: Python<'_>) -> PyResult<OwnedElements> {
        let queue = match self.gpu {
            Some((gpu, stream)) => gpu::queue_behind(py, gpu, stream)?,
            None => Queue::host(),
        };
        let kept = match &self.keep {
            Some(object) => ElementsOwner::new(OwnerKind::Object(object.clone_ref(py))),
            None => ElementsOwner::nothing(),
        };
        Ok(OwnedElements {
            address: self.address,
            dtype: self.dtype,
            len: self.elements,
            writable: true,
            queue,
            kept,
        })
    }
}
