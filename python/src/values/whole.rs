//! Integers from Python: errors for negative or too large numbers name the argument.

use crate::error::usage;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

/// Converts to a rank, several ranks, or none.
pub(crate) fn ranks<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
    extract(value, "as a rank", "use ranks from 0 to the number of ranks - 1")
}

/// Converts to a tag, or none.
pub(crate) fn tag<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
    extract(value, "as a tag", "use a tag from 0 to 2³² - 1")
}

/// Converts to a count, several of them, or none.
pub(crate) fn count<'py, T: FromPyObjectOwned<'py>>(value: &Bound<'py, PyAny>) -> PyResult<T> {
    extract(value, "as a count", "use 0 or more")
}

fn extract<'py, T: FromPyObjectOwned<'py>>(
    value: &Bound<'py, PyAny>,
    role: &str,
    remedy: &str,
) -> PyResult<T> {
    let py = value.py();
    value.extract().map_err(Into::into).map_err(|error: PyErr| {
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        usage(py, format!("{value} cannot be used {role}"), remedy)
    })
}
