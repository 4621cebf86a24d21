//! The form of a report: plain lines, a mark before each, so that it reads the same in a terminal, a log and a mail.

use std::io::{self, Write};
use std::process::ExitCode;

/// Prints lines as they are found, and remembers whether anything has to be mended.
#[derive(Default)]
pub(super) struct Report {
    failed: bool,
}

impl Report {
    /// Begins a section.
    pub(super) fn title(&mut self, title: &str) {
        self.line(title);
    }

    /// Something is as it has to be.
    pub(super) fn good(&mut self, what: &str) {
        self.line(&format!("  ✓ {what}"));
    }

    /// Something is worth knowing, and needs nothing.
    pub(super) fn note(&mut self, what: &str) {
        self.line(&format!("  - {what}"));
    }

    /// Something has to be mended; the line says how.
    pub(super) fn bad(&mut self, what: &str) {
        self.failed = true;
        self.line(&format!("  ✗ {what}"));
    }

    /// A reader that has gone away changes nothing about what is found.
    fn line(&mut self, line: &str) {
        let _ = writeln!(io::stdout(), "{line}");
    }

    pub(super) fn finish(self) -> ExitCode {
        if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
