//! The program `hexagram`, as installed by the wheel.

use pyo3::prelude::*;
use std::process::ExitCode;

/// Runs the program `hexagram` and returns its exit code.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<String>) -> u8 {
    let code = py.detach(|| hexagram_cli::run(arguments));
    // The type does not expose its number.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}
