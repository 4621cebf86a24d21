//! The form of a report: plain lines, each with a mark, readable in a terminal, a log and an e-mail.

use crate::console::{self, PrintError};
use std::process::ExitCode;

/// Prints each line immediately, and records whether a check has failed.
#[derive(Default)]
pub(super) struct CheckReport {
    failed: bool,
    /// The first line that could not be printed.
    lost: Option<PrintError>,
}

impl CheckReport {
    /// Begins a section.
    pub(super) fn title(&mut self, title: &str) {
        self.line(title);
    }

    /// Reports a check that passed.
    pub(super) fn good(&mut self, what: &str) {
        self.line(&format!("  ✓ {what}"));
    }

    /// Reports information that needs no action.
    pub(super) fn note(&mut self, what: &str) {
        self.line(&format!("  - {what}"));
    }

    /// Reports a problem; the line contains the remedy.
    pub(super) fn bad(&mut self, what: &str) {
        self.failed = true;
        self.line(&format!("  ✗ {what}"));
    }

    fn line(&mut self, line: &str) {
        if self.lost.is_none() {
            self.lost = console::print(line).err();
        }
    }

    /// Returns the exit code; reports lost lines on standard error.
    pub(super) fn finish(self) -> ExitCode {
        match self.lost {
            Some(error) => console::failure("hexagram check", error),
            None if self.failed => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}
