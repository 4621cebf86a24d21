//! Output that cannot be written: no subcommand loses it and exits with 0.

use crate::harness::{Ended, folder, program, run, wrapped};
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Status that a shell reports for a program killed by SIGPIPE.
const READER_GONE: Option<i32> = Some(141);

/// A call of each subcommand that prints something soon.
const CALLS: [&str; 11] = [
    "sample --len 5 --ranks 2",
    "sample --len 5 --ranks 2 --json",
    "check",
    "bench all_reduce --ranks 2 --transport thread -b 8 -e 64 --iters 2",
    "bench all_reduce --ranks 2 --transport shm -b 8 -e 64 --iters 2",
    "step --ranks 2 --transport tcp --steps 1 --warmup 0 --algorithm none",
    "simulate --ranks 2 --steps 1 --warmup 0 --algorithm gradient-allreduce",
    "advise --ranks 2 --hosts 2 --algorithm bytegrad --model resnet50",
    "run -n 2 -- echo results",
    "help bench",
    "--version",
];

fn call(arguments: &str) -> Command {
    program(&arguments.split(' ').collect::<Vec<_>>())
}

/// Standard output that takes nothing.
fn into(to: impl Into<Stdio>, mut command: Command) -> Output {
    command.stdout(to).stderr(Stdio::piped()).output().unwrap()
}

/// A program's standard error, without the warnings of a busy machine, such as a repeated connection.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| !line.contains(" WARN ")).collect::<Vec<_>>().join("\n")
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_a_failure_that_is_said() {
    for arguments in CALLS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = into(full, call(arguments));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.contains("No space left on device") && said.contains("lost"), "{arguments}: {said}");
        assert!(!said.contains("panicked"), "{arguments}: {said}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_closed_output_is_refused_before_any_work() {
    for arguments in CALLS {
        let Ended { code, stderr, .. } = run(wrapped(&format!("\"$0\" {arguments} >&-")));
        assert_eq!((code, stderr.len()), (Some(1), 1), "{arguments}: {stderr:#?}");
        assert!(stderr[0].contains("cannot print: Bad file descriptor"), "{arguments}: {stderr:#?}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_program_quietly() {
    for arguments in CALLS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = into(writer, call(arguments));
        // A job continues: its output is not its purpose.
        let code = if arguments.starts_with("run") { Some(0) } else { READER_GONE };
        assert_eq!((output.status.code(), said(&output).as_str()), (code, ""), "{arguments}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_job_goes_on_with_its_output_lost_and_fails_in_the_end() {
    let folder = folder("lost");
    let done = folder.join("done");
    let script = format!("echo one; echo two; echo done >> {}; exit \"$1\"", done.display());
    for (code, expected) in [("0", 1), ("7", 7)] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = into(full, program(&["run", "-n", "1", "--", "sh", "-c", &script, "sh", code]));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(expected), "{said}");
        assert_eq!(said.matches("No space left").count(), if expected == 1 { 2 } else { 1 }, "{said}");
    }
    assert_eq!(std::fs::read_to_string(done).unwrap(), "done\ndone\n");
}
