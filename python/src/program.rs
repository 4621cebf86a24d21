//! The program `hexagram`, as the wheel installs it.

use pyo3::prelude::*;
use std::process::ExitCode;

/// Runs the program `hexagram` and returns the code with which to exit.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<String>) -> u8 {
    let code = py.detach(|| hexagram_cli::run(arguments));
    // The type tells its number to nobody.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}
