//! Views of the buckets of the engine, which torch imports by DLPack without a copy.

use crate::error::exception;
use crate::memory::export::{DlpackRequest, HOST_MEMORY, LentElements, capsule, memory_of_gpu};
use crate::memory::gpu::{foreign, is_own_process};
use hexagram::logical::Span;
use hexagram::physical::memory::Keeper;
use pyo3::prelude::*;
use std::sync::Arc;

/// Gradients or parameters of one bucket, in place.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct BucketView {
    memory: Span,
    /// GPU that has the memory; `None` for host memory.
    gpu: Option<usize>,
}

impl BucketView {
    pub(super) fn new(memory: Span, gpu: Option<usize>) -> Self {
        BucketView { memory, gpu }
    }

    /// Makes a stream of the consumer wait for the memory; returns the owner of the memory for the consumer.
    fn lend(&self, stream: Option<isize>) -> hexagram::Result<Keeper> {
        let (Some(gpu), Some(stream)) = (self.gpu, stream.and_then(|stream| usize::try_from(stream).ok()))
        else {
            return Ok(Arc::new(self.memory.clone()));
        };
        foreign(gpu, stream)?.wait_for_memory(&self.memory)?;
        Ok(Arc::new(LentToStream { memory: self.memory.clone(), gpu, stream }))
    }
}

/// Memory of a GPU, until the library that uses it on a stream releases it.
struct LentToStream {
    memory: Span,
    gpu: usize,
    stream: usize,
}

impl Drop for LentToStream {
    fn drop(&mut self) {
        let release =
            || foreign(self.gpu, self.stream).and_then(|stream| stream.release(self.memory.clone()));
        // In a forked process the memory belongs to the parent.
        if !is_own_process() || release().is_err() {
            std::mem::forget(self.memory.clone());
        }
    }
}

#[pymethods]
impl BucketView {
    fn __len__(&self) -> usize {
        self.memory.len()
    }

    #[getter]
    fn dtype(&self) -> String {
        self.memory.dtype().to_string()
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.gpu.map_or(HOST_MEMORY, memory_of_gpu)
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<isize>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let lent = LentElements {
            address: self.memory.address().expose_provenance(),
            elements: self.memory.len(),
            dtype: self.memory.dtype(),
            device: self.__dlpack_device__(),
            keep: self.lend(stream).map_err(|error| exception(py, &error))?,
        };
        capsule(py, &lent, DlpackRequest { max_version, device: dl_device, copy })
    }
}
