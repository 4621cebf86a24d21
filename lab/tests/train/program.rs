//! A training program as its users start it: real processes, with files in separate folders. The tests of candle's
//! programs use this file too.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The built example: cargo puts it next to the folder of this test.
pub(crate) fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.ancestors().nth(2).unwrap().join("examples").join(name)
}

/// A new folder for the files of one run.
pub(crate) fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hexagram-{}-{name}-{}", crate::PROGRAM, std::process::id()))
}

/// The program with these arguments, split as a shell does, untouched by whatever launcher runs the tests.
pub(crate) fn command(name: &str, arguments: &str) -> Command {
    let mut command = Command::new(program(crate::PROGRAM));
    for (variable, _) in std::env::vars_os() {
        let text = variable.to_string_lossy();
        if ["RANK", "WORLD_", "LOCAL_", "MASTER_", "OMPI_COMM", "HEXAGRAM_"]
            .iter()
            .any(|p| text.starts_with(p))
        {
            command.env_remove(&variable);
        }
    }
    command.args(shell_words::split(arguments).unwrap()).stdin(Stdio::null());
    if !arguments.contains("--out") {
        command.arg("--out").arg(folder(name));
    }
    command
}

pub(crate) fn run(name: &str, arguments: &str) -> Output {
    command(name, arguments).output().unwrap()
}

/// Runs to a report, which is the last line of standard output.
pub(crate) fn report(name: &str, arguments: &str) -> Value {
    let output = run(name, &format!("{arguments} --json"));
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {err}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

pub(crate) fn metrics(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder(name).join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn losses(name: &str) -> Vec<f64> {
    of_steps(name, "loss")
}

/// Learning rates of all steps of a run.
pub(crate) fn rates(name: &str) -> Vec<f64> {
    of_steps(name, "learning_rate")
}

pub(crate) fn of_steps(name: &str, field: &str) -> Vec<f64> {
    let steps = metrics(name).into_iter().filter(|line| line["event"] == "step");
    steps.map(|line| line[field].as_f64().unwrap()).collect()
}

pub(crate) fn clean(name: &str) {
    let _ = std::fs::remove_dir_all(folder(name));
}
