//! Spans: elements at a known address.

use super::OwnedElements;
use super::elements_owner::{ElementsOwner, OwnerKind};
use crate::dtype::dtype;
use crate::error::usage;
use hexagram::DType;
use pyo3::prelude::*;

/// Elements at an address: the cheapest argument. They are `elements` contiguous elements of a type such as `"f32"`.
/// `keep` is any object that owns them; an operation keeps it until it has ended. Without it, the caller must keep them
/// alive.
///
/// Raises `UsageError` for an unknown type, and for elements at address 0.
#[pyclass(frozen, module = "hexagram")]
pub(crate) struct Span {
    address: usize,
    elements: usize,
    dtype: DType,
    keep: Option<Py<PyAny>>,
}

#[pymethods]
impl Span {
    #[new]
    #[pyo3(signature = (address, elements, dtype, keep = None))]
    fn new(
        py: Python<'_>,
        address: usize,
        elements: usize,
        dtype: &str,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let dtype = self::dtype(py, dtype)?;
        if address == 0 && elements > 0 {
            return Err(usage(py, format!("{elements} elements at address 0"), "pass their address"));
        }
        Ok(Span { address, elements, dtype, keep })
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
    pub(super) fn elements(&self, py: Python<'_>) -> OwnedElements {
        let kept = match &self.keep {
            Some(object) => ElementsOwner::new(OwnerKind::Object(object.clone_ref(py))),
            None => ElementsOwner::nothing(),
        };
        OwnedElements { address: self.address, dtype: self.dtype, len: self.elements, writable: true, kept }
    }
}
