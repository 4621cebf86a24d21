//! Errors as exceptions: each kind of error is a class in `hexagram/errors.py`, with its fields as attributes.

use hexagram::Error;
use hexagram::physical::Peer;
use hexagram::physical::error::ErrorContext;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::time::Duration;

/// Returns the exception for an error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failed| failed)
}

/// Returns the exception for an invalid call.
pub(crate) fn usage(py: Python<'_>, what: impl Into<String>, remedy: impl Into<String>) -> PyErr {
    exception(py, &Error::usage(what, remedy))
}

/// Returns the exception for something in this process that has not ended in time.
pub(crate) fn late(py: Python<'_>, what: &str, after: Duration) -> PyErr {
    let seconds = after.as_secs_f64();
    let text =
        format!("{what} has not ended within {seconds} s; inspect its threads, for example with py-spy");
    let build = || {
        let raised = py.import("hexagram.errors")?.getattr("DeadlineExceeded")?.call1((text,))?;
        raised.setattr("seconds", seconds)?;
        Ok(PyErr::from_value(raised))
    };
    build().unwrap_or_else(|failed| failed)
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let name = class_of(error);
    let class = py.import("hexagram.errors")?.getattr(name)?.cast_into::<PyType>()?;
    let raised = class.call1((error.to_string(),))?;
    set_fields(&raised, error)?;
    Ok(PyErr::from_value(raised))
}

/// Returns the name of the class for an error.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::PeerFailed { .. } => "PeerFailed",
        Error::Membership { .. } => "MembershipChanged",
        Error::Deadline { .. } => "DeadlineExceeded",
        Error::Mismatch { .. } => "Mismatch",
        Error::NotFinite { .. } => "NotFinite",
        Error::Poisoned { .. } => "Poisoned",
        Error::Busy { .. } => "Busy",
        Error::Usage { .. } => "UsageError",
        Error::Setup { .. } => "SetupError",
        Error::System { .. } => "SystemFailure",
        _ => "Error",
    }
}

fn set_fields(raised: &Bound<'_, PyAny>, error: &Error) -> PyResult<()> {
    match error {
        Error::PeerFailed { culprit, cause, context } => {
            set_peer(raised, culprit)?;
            raised.setattr("cause", cause)?;
            set_during(raised, context)
        }
        Error::Membership { generation, culprit, cause, context } => {
            if let Some(culprit) = culprit {
                set_peer(raised, culprit)?;
            }
            raised.setattr("generation", generation)?;
            raised.setattr("cause", cause)?;
            set_during(raised, context)
        }
        Error::Deadline { waiting_for, stragglers, after, context } => {
            if let Some(peer) = stragglers.first().map(|first| &first.peer).or(waiting_for.as_ref()) {
                set_peer(raised, peer)?;
            }
            let late: Vec<usize> = stragglers.iter().map(|straggler| straggler.peer.rank).collect();
            raised.setattr("stragglers", late)?;
            raised.setattr("seconds", after.as_secs_f64())?;
            set_during(raised, context)
        }
        Error::Mismatch { sequence, mine, theirs, peer } => {
            set_peer(raised, peer)?;
            raised.setattr("sequence", sequence)?;
            raised.setattr("operation", mine.to_string())?;
            raised.setattr("theirs", theirs.to_string())
        }
        Error::NotFinite { place, tensor, index, value, context } => {
            set_peer(raised, place)?;
            raised.setattr("tensor", tensor.as_deref())?;
            raised.setattr("index", index)?;
            raised.setattr("value", value)?;
            set_during(raised, context)
        }
        Error::System { cause, .. } => raised.setattr("errno", cause.raw_os_error()),
        _ => Ok(()),
    }
}

fn set_peer(raised: &Bound<'_, PyAny>, peer: &Peer) -> PyResult<()> {
    raised.setattr("rank", peer.rank)?;
    raised.setattr("host", &*peer.host)?;
    raised.setattr("pid", peer.pid)
}

fn set_during(raised: &Bound<'_, PyAny>, context: &ErrorContext) -> PyResult<()> {
    let ErrorContext::Operation(fingerprint, tag) = context else { return Ok(()) };
    raised.setattr("operation", fingerprint.to_string())?;
    raised.setattr("sequence", tag.sequence())
}
