//! The program as a user starts it: a report that cannot be printed, and a text that cannot be read.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(target_os = "linux")]

use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Trains as little as it can.
fn run(arguments: &[&str], to: impl Into<Stdio>) -> Output {
    let svg = format!("{}/{}.svg", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let mut command = Command::new(env!("CARGO_BIN_EXE_balance"));
    command.args(["--ranks", "2", "--batch", "1", "--epochs", "1", "--svg", &svg]).args(arguments);
    command.stdin(Stdio::null()).stdout(to).stderr(Stdio::piped()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_report_that_cannot_be_printed_is_a_failure_that_is_said() {
    for arguments in [&[][..], &["--json"]] {
        let output = run(arguments, File::options().write(true).open("/dev/full").unwrap());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("balance: cannot print: No space left") && !said.contains("panicked"),
            "{said}"
        );
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(&[], writer);
    assert_eq!((output.status.code(), said(&output)), (Some(141), String::new()));
}

#[test]
fn a_text_without_an_end_is_refused() {
    let output = run(&["--text", "/dev/zero"], Stdio::piped());
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot read /dev/zero: it is a pipe or a device"), "{said}");
}
