//! Simulated ranks against processes: the same losses, states and parameters, to the last bit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs this crate's program; returns its last line of output.
fn last_line(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_own-algorithm"));
    let ended =
        command.args(arguments).args(["--ranks", "4", "--steps", "20", "--seed", "3"]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap().lines().last().unwrap_or_default().to_owned()
}

#[test]
fn simulated_ranks_end_where_processes_do() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("processes-{}", std::process::id()));
    for algorithm in ["adaptive-local-sgd", "bytegrad", "d-psgd"] {
        let words = [
            "simulate",
            "--train=digits",
            "--hosts=4",
            "--link=1gbit,50us",
            "--json",
            "--algorithm",
            algorithm,
        ];
        let simulated: Value = serde_json::from_str(&last_line(&words)).unwrap();
        let simulated = &simulated["results"][0];

        let out = out.to_str().unwrap();
        last_line(&["train", "--transport", "tcp", "--out", out, "--algorithm", algorithm]);
        let record = std::fs::read_to_string(Path::new(out).join("metrics.jsonl")).unwrap();
        let lines: Vec<Value> = record.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |event: &'static str| lines.iter().filter(move |line| line["event"] == event);

        let summary = of("summary").next().unwrap();
        assert_eq!(simulated["replicas"].as_array().unwrap().len(), 4);
        assert_eq!(simulated["replicas"], summary["replicas"], "{algorithm}");
        let curve = simulated["curve"].as_array().unwrap();
        assert_eq!(curve.len(), of("state").count());
        for (found, expected) in curve.iter().zip(of("state")) {
            for figure in ["step", "loss", "accuracy", "consensus_distance"] {
                assert_eq!(found[figure], expected[figure], "{figure} of {algorithm}");
            }
        }
    }
    std::fs::remove_dir_all(out).unwrap();
}
