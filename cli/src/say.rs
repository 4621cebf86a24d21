//! How the program speaks of failures: one line on standard error that begins with the subcommand.

use hexagram::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Says something on standard error, in one piece: other ranks may be writing there at the same time. If that is gone,
/// nobody is left to tell.
pub(crate) fn line(subcommand: &str, said: impl Display) {
    let _ = io::stderr().write_all(format!("hexagram {subcommand}: {said}\n").as_bytes());
}

/// Says why nothing came of a call; returns what to exit with: 2 for a call that was wrong, else 1.
pub(crate) fn failure(subcommand: &str, error: &Error) -> ExitCode {
    line(subcommand, error);
    ExitCode::from(if matches!(error, Error::Usage { .. }) { 2 } else { 1 })
}

/// Prints a line at once. A reader that has gone away does not end a measurement.
pub(crate) fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
