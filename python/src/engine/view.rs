//! Views of the buckets of the engine, which torch imports by DLPack without a copy.

use crate::memory::export::{DlpackRequest, LentElements, capsule};
use hexagram::logical::Span;
use pyo3::prelude::*;
use std::sync::Arc;

/// Gradients or parameters of one bucket, in place.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct BucketView(Span);

impl BucketView {
    pub(super) fn new(span: Span) -> Self {
        BucketView(span)
    }
}

#[pymethods]
impl BucketView {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        crate::memory::export::DEVICE
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
            address: self.0.address().expose_provenance(),
            elements: self.0.len(),
            dtype: self.0.dtype(),
            keep: Arc::new(self.0.clone()),
        };
        capsule(py, &lent, DlpackRequest { max_version, device: dl_device, copy })
    }
}
