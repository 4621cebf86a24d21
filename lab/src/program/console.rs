//! Output of a program: results on standard output, and failures as one line on standard error that begins with the
//! program name and its subcommand.

use hexagram::Error;
pub use hexagram::physical::stdout::{PrintError, print};
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Reason why a call failed, or its output was lost.
#[derive(Debug)]
pub enum ProgramError {
    /// Error of the call, or of a rank.
    Call(Error),
    /// Output that could not be printed.
    Print(PrintError),
}

impl From<Error> for ProgramError {
    fn from(error: Error) -> Self {
        ProgramError::Call(error)
    }
}

impl From<PrintError> for ProgramError {
    fn from(error: PrintError) -> Self {
        ProgramError::Print(error)
    }
}

impl Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProgramError::Call(error) => error.fmt(f),
            ProgramError::Print(error) => error.fmt(f),
        }
    }
}

/// Returns the name by which this program was started, with a subcommand.
pub fn name(subcommand: &str) -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let program = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{program} {subcommand}").trim().to_owned()
}

/// Prints a line on standard error in one write, since other ranks may write at the same time. Errors are ignored: no
/// other output is left.
pub fn line(program: &str, said: impl Display) {
    let _ = io::stderr().write_all(format!("{program}: {said}\n").as_bytes());
}

/// Prints the reason of a failure. Returns the exit code: 2 for invalid options, 141 if the reader closed the output,
/// else 1.
pub fn failure(program: &str, failure: impl Into<ProgramError>) -> ExitCode {
    match failure.into() {
        ProgramError::Print(error) => error.report(program),
        ProgramError::Call(error) => {
            line(program, &error);
            ExitCode::from(if matches!(error, Error::Usage { .. }) { 2 } else { 1 })
        }
    }
}

/// Prints clap output: help and versions on standard output, errors of the command line on standard error. Returns
/// the exit code.
pub fn instead(program: &str, shown: &clap::Error) -> ExitCode {
    match shown.print() {
        Err(cause) if !shown.use_stderr() => PrintError::from(cause).report(program),
        _ => ExitCode::from(u8::try_from(shown.exit_code()).unwrap_or(2)),
    }
}

/// Returns the exit code of a program, after its failure was printed.
pub fn ended(program: &str, outcome: Result<u8, ProgramError>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure(program, error),
    }
}

/// Formats a number of bytes for readers.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut amount = count as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{amount:.1} {}", UNITS[unit]) }
}

/// Returns a share as percent, or a dash if it is NaN.
pub fn percent(share: f64) -> String {
    if share.is_nan() { "-".to_owned() } else { format!("{:.1} %", 100.0 * share) }
}

/// Returns a row of a table in Markdown.
pub fn markdown_row(cells: &[String]) -> String {
    format!("| {} |", cells.join(" | "))
}

/// Returns the heading of a table in Markdown, and the rule below it.
pub fn markdown_heading(cells: &[&str]) -> String {
    format!("| {} |\n|{}", cells.join(" | "), "---|".repeat(cells.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn tables_are_markdown() {
        assert_eq!(markdown_heading(&["a", ""]), "| a |  |\n|---|---|");
        assert_eq!(markdown_row(&["1".to_owned(), percent(0.5)]), "| 1 | 50.0 % |");
    }
}
