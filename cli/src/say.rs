//! Output of the program: results on standard output, failures as one line on standard error that begins with the
//! subcommand.

use hexagram::Error;
pub(crate) use hexagram::physical::stdout::{PrintError, print};
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Reason why nothing came of a call, or nobody learned of it.
#[derive(Debug)]
pub(crate) enum Failure {
    Call(Error),
    Print(PrintError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Call(error)
    }
}

impl From<PrintError> for Failure {
    fn from(error: PrintError) -> Self {
        Failure::Print(error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Call(error) => error.fmt(f),
            Failure::Print(error) => error.fmt(f),
        }
    }
}

/// Says something on standard error, in one piece: other ranks may be writing there at the same time. If that is gone,
/// nobody is left to tell.
pub(crate) fn line(subcommand: &str, said: impl Display) {
    let _ = io::stderr().write_all(format!("hexagram {subcommand}: {said}\n").as_bytes());
}

/// Says why nothing came of a call; returns what to exit with: 2 for a call that was wrong, 141 if nobody reads the
/// output any more, else 1.
pub(crate) fn failure(subcommand: &str, failure: impl Into<Failure>) -> ExitCode {
    match failure.into() {
        Failure::Print(error) => error.report(&format!("hexagram {subcommand}")),
        Failure::Call(error) => {
            line(subcommand, &error);
            ExitCode::from(if matches!(error, Error::Usage { .. }) { 2 } else { 1 })
        }
    }
}

/// Shows what clap has instead of options: help and versions on standard output, what is wrong with a call on standard
/// error. Returns what to exit with.
pub(crate) fn instead(shown: &clap::Error) -> ExitCode {
    match shown.print() {
        Err(cause) if !shown.use_stderr() => PrintError::from(cause).report("hexagram"),
        _ => ExitCode::from(u8::try_from(shown.exit_code()).unwrap_or(2)),
    }
}
