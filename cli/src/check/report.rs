//! The form of a report: plain lines, a mark before each, so that it reads the same in a terminal, a log and a mail.

use crate::say::{self, PrintError};
use std::process::ExitCode;

/// Prints lines as they are found, and remembers whether anything has to be mended.
#[derive(Default)]
pub(super) struct Report {
    failed: bool,
    /// The first line that could not be printed.
    lost: Option<PrintError>,
}

impl Report {
    /// Begins a section.
    pub(super) fn title(&mut self, title: &str) {
        self.line(title);
    }

    /// Reports that something is as it has to be.
    pub(super) fn good(&mut self, what: &str) {
        self.line(&format!("  ✓ {what}"));
    }

    /// Reports something that is worth knowing, and needs nothing.
    pub(super) fn note(&mut self, what: &str) {
        self.line(&format!("  - {what}"));
    }

    /// Reports something that has to be mended; the line says how.
    pub(super) fn bad(&mut self, what: &str) {
        self.failed = true;
        self.line(&format!("  ✗ {what}"));
    }

    fn line(&mut self, line: &str) {
        if self.lost.is_none() {
            self.lost = say::print(line).err();
        }
    }

    /// Returns the exit code; says on standard error if lines were lost.
    pub(super) fn finish(self) -> ExitCode {
        match self.lost {
            Some(error) => say::failure("hexagram check", error),
            None if self.failed => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}
