//! Errors of the loader as exceptions, with the sample and the worker as attributes and what it raised as the cause.

use crate::error::usage;
use hexagram::sampler::loader::LoaderError;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::error::Error;
use std::sync::Arc;

/// Returns the exception of an error. What ends a program, such as Ctrl-C, is passed on as it is.
pub(super) fn exception(py: Python<'_>, error: &LoaderError) -> PyErr {
    if let LoaderError::Options { .. } | LoaderError::Sampler(_) | LoaderError::State { .. } = error {
        return usage(py, error.to_string(), "make the loader anew");
    }
    let cause = cause(error).and_then(|cause| cause.downcast_ref::<PyErr>()).map(|cause| cause.clone_ref(py));
    match cause {
        Some(cause) if !cause.is_instance_of::<PyException>(py) => cause,
        cause => build(py, error, cause).unwrap_or_else(|failed| failed),
    }
}

/// Returns what went wrong in the dataset or the collate function.
fn cause(error: &LoaderError) -> Option<&Arc<dyn Error + Send + Sync>> {
    match error {
        LoaderError::Sample { cause, .. }
        | LoaderError::Collate { cause, .. }
        | LoaderError::Init { cause, .. } => Some(cause),
        _ => None,
    }
}

fn build(py: Python<'_>, error: &LoaderError, cause: Option<PyErr>) -> PyResult<PyErr> {
    let raised = py.import("hexagram.errors")?.getattr("LoaderError")?.call1((error.to_string(),))?;
    match error {
        LoaderError::Sample { index, worker, epoch, .. } => {
            raised.setattr("sample", index)?;
            raised.setattr("worker", worker.to_string())?;
            raised.setattr("epoch", epoch)?;
        }
        LoaderError::Collate { worker, epoch, .. } => {
            raised.setattr("worker", worker.to_string())?;
            raised.setattr("epoch", epoch)?;
        }
        LoaderError::Init { worker, .. } => raised.setattr("worker", worker.to_string())?,
        _ => {}
    }
    let raised = PyErr::from_value(raised);
    raised.set_cause(py, cause);
    Ok(raised)
}
