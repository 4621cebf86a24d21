//! The first program as its users start it: real processes, over every transport.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod elastic;
mod last;
mod program;
mod resume;
mod text;

use hexagram::testing;
use program::{clean, command, folder, losses, metrics, rates, report, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Example that is tested.
const PROGRAM: &str = "train";

#[test]
fn the_first_command_reaches_97_percent_and_its_replicas_are_identical() {
    let report = report("first", "");
    assert!(report["test_accuracy"].as_f64().unwrap() >= 0.97, "{report}");
    assert_eq!((report["ranks"].as_u64(), report["replicas_identical"].as_bool()), (Some(4), Some(true)));
    clean("first");
}

#[test]
fn digits_are_learned_by_any_number_of_ranks_over_any_transport() {
    for (ranks, transport) in [(1, "tcp"), (2, "shm"), (3, "tcp"), (4, "shm"), (2, "thread")] {
        let report = report("learn", &format!("--ranks {ranks} --epochs 4 --transport {transport}"));
        assert!(report["test_accuracy"].as_f64().unwrap() >= 0.85, "{report}");
        assert_eq!(report["replicas_identical"], true, "{report}");
        assert_eq!((report["ranks"].as_u64(), report["transport"].as_str()), (Some(ranks), Some(transport)));
        let sent = report["bytes_sent"].as_u64().unwrap();
        assert!(if ranks == 1 { sent == 0 } else { sent > 0 }, "{report}");
    }
    clean("learn");
}

fn relative(one: f64, other: f64) -> f64 {
    (one - other).abs() / other.abs()
}

#[test]
fn four_ranks_take_the_steps_of_one_with_the_fourfold_batch() {
    report("four32", "--ranks 4 --batch 16 --epochs 2");
    report("one32", "--ranks 1 --batch 64 --epochs 2");
    let four = losses("four32");
    let one = losses("one32");
    assert_eq!(four.len(), one.len());
    for (step, (four, one)) in four.iter().zip(&one).take(20).enumerate() {
        assert!(relative(*four, *one) < 1e-4, "step {step}: {four} and {one}");
    }
    ["four32", "one32"].into_iter().for_each(clean);
}

#[test]
fn a_run_is_reproducible_and_a_seed_matters() {
    let loss = |name: &str, arguments: &str| report(name, arguments)["final_loss"].as_f64().unwrap();
    let first = loss("seed", "--ranks 3 --epochs 1 --seed 5");
    assert_eq!(loss("seed", "--ranks 3 --epochs 1 --seed 5 --transport tcp"), first);
    assert_ne!(loss("seed", "--ranks 3 --epochs 1 --seed 6"), first);
    clean("seed");
}

#[test]
fn a_run_leaves_metrics_and_a_plot() {
    let report = report("files", "--ranks 2 --epochs 2");
    let lines = metrics("files");
    let count = |event: &str| lines.iter().filter(|line| line["event"] == event).count();
    assert_eq!((count("step"), count("epoch"), count("summary")), (88, 2, 1));
    assert_eq!(lines.last().unwrap()["test_accuracy"], report["test_accuracy"]);
    let apart = |line: &Value| line["event"] == "epoch" && line["consensus_distance"] != 0.0;
    assert!(!lines.iter().any(apart), "synchronous SGD keeps replicas identical");
    assert!(std::fs::read_to_string(folder("files").join("plot.svg")).unwrap().contains("</svg>"));
    clean("files");
}

#[test]
fn each_epoch_evaluates_the_mean_of_the_replicas_and_says_how_far_they_are_from_it() {
    let report = report("apart", "--ranks 3 --epochs 2 --algorithm d-psgd");
    let epochs: Vec<Value> = metrics("apart").into_iter().filter(|line| line["event"] == "epoch").collect();
    assert!(epochs.iter().all(|epoch| epoch["consensus_distance"].as_f64().unwrap() > 1e-3), "{epochs:?}");
    // The exact average that is evaluated in the end.
    assert_eq!(epochs.last().unwrap()["test_accuracy"], report["test_accuracy"]);
    clean("apart");
}

#[test]
fn torchruns_variables_start_it_too_and_the_agent_may_keep_its_port() {
    // Below the range from which the system gives ports to others.
    let agent =
        (21_000..30_000).find_map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).ok()).unwrap();
    let port = agent.local_addr().unwrap().port().to_string();
    let started: Vec<Child> = ["0", "1"]
        .map(|rank| {
            let mut command = command("torchrun", "--epochs 1 --json --transport tcp");
            command.envs([
                ("RANK", rank),
                ("LOCAL_RANK", rank),
                ("WORLD_SIZE", "2"),
                ("MASTER_PORT", port.as_str()),
            ]);
            command.envs([("MASTER_ADDR", "localhost"), ("TORCHELASTIC_RUN_ID", "none")]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .into();
    for (rank, job) in started.into_iter().enumerate() {
        let output = job.wait_with_output().unwrap();
        assert!(output.status.success(), "rank {rank}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout).contains("\"ranks\":2"), rank == 0);
    }
    clean("torchrun");
}

#[test]
fn ranks_that_were_started_differently_are_told_at_once() {
    for (name, value) in [("--epochs", "3"), ("--batch", "8"), ("--seed", "9")] {
        let port = testing::free_port();
        let started = ["0", "1"].map(|rank| {
            let different = if rank == "1" { format!("{name} {value}") } else { String::new() };
            let mut command = command("differ", &different);
            command.envs([("HEXAGRAM_RANK", rank), ("HEXAGRAM_SIZE", "2")]);
            command.env("HEXAGRAM_ADDR", format!("127.0.0.1:{port}"));
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for job in started {
            let output = job.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && text.contains(&format!("{name} {value}")), "{text}");
        }
    }
    clean("differ");
}

/// Fails with one line on standard error that contains `what`.
fn refused(arguments: &str, variables: &[(&str, &str)], what: &str) {
    let output = command("refused", arguments).envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{arguments} {variables:?} succeeded");
    assert!(text.contains(what) && text.trim().lines().count() == 1, "{arguments} {variables:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn bad_input_is_one_clear_line() {
    refused("--ranks 0", &[], "--ranks 0");
    refused("--ranks 1000000", &[], "1 to 64 ranks");
    refused("--algorithm magic", &[], "unknown algorithm `magic`; use one of ");
    refused("--batch 5000", &[], "1437");
    refused("--transport thread", &[("RANK", "0"), ("WORLD_SIZE", "1")], "World::threads");
    refused("--data /does/not/exist.csv", &[], "/does/not/exist.csv");
    refused("", &[("RANK", "5"), ("WORLD_SIZE", "4")], "RANK=5 contradicts WORLD_SIZE=4");
    refused("", &[("RANK", "x")], "RANK=x is not a number");
    let whole = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.csv.gz")).unwrap();
    let cut = folder("cut.csv.gz");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    refused(&format!("--data '{}'", cut.display()), &[], "incomplete or damaged");
    std::fs::remove_file(cut).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let torchrun =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
    refused("", &torchrun, &format!(" has 127.0.0.1:{port}; end it, or choose a different MASTER_PORT"));
    drop(taken);
    let port = testing::free_port().to_string();
    let torchrun =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
    refused("--join-deadline 1", &torchrun, "rank 1 of 2 did not join within 1s");
    refused("--out /proc/nowhere", &[], "/proc/nowhere");
}

/// The processes that `job` has started, once there are `count` of them.
fn ranks(job: &Child, count: usize) -> Vec<i32> {
    let started = Instant::now();
    loop {
        let pids: Vec<i32> = std::fs::read_dir(format!("/proc/{}/task", job.id()))
            .unwrap()
            .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")).ok())
            .flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
            .collect();
        if pids.len() == count {
            return pids;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "there are no {count} ranks");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_killed_rank_ends_the_job_and_every_survivor_names_it() {
    for transport in ["shm", "tcp"] {
        let name = format!("kill-{transport}");
        let mut command = command(&name, &format!("--ranks 4 --epochs 100000 --transport {transport}"));
        let job = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let victim = ranks(&job, 4)[2];
        // In the middle of training: metrics are written epoch by epoch.
        let started = Instant::now();
        let trains =
            || std::fs::metadata(folder(&name).join("metrics.jsonl")).is_ok_and(|file| file.len() > 0);
        while !trains() {
            assert!(started.elapsed() < Duration::from_secs(60), "the training did not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        let output = job.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(137), "{text}");
        let culprit = format!("pid {victim}) died");
        assert_eq!(text.lines().filter(|line| line.contains(&culprit)).count(), 3, "{text}");
        assert!(text.contains(&format!("(pid {victim}) was killed by signal 9")), "{text}");
        clean(&name);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn figures_that_cannot_be_kept_end_nothing_and_a_report_that_cannot_be_printed_is_a_failure() {
    // metrics.jsonl leads to a disk that is full.
    std::fs::create_dir_all(folder("no-figures")).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder("no-figures").join("metrics.jsonl")).unwrap();
    let output = run("no-figures", "--ranks 2 --epochs 2");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("test accuracy"), "{err}");
    assert_eq!(err.matches("metrics.jsonl: No space left").count(), 1, "{err}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("plot.svg are in"), "they are not all there");
    clean("no-figures");
    for transport in ["thread", "tcp"] {
        for arguments in [format!("--ranks 2 --epochs 1 --transport {transport}"), "--algorithm list".into()]
        {
            let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
            let output = command("lost", &arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
            let output = output.wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{err}");
            assert!(err.contains("train: cannot print: No space left"), "{err}");
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let output = command("lost", &arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
            let output = output.wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(141), "{err}");
            assert!(!err.contains("train: "), "{err}");
        }
    }
    clean("lost");
}

#[test]
fn the_folder_of_a_training_that_runs_is_refused() {
    std::fs::create_dir_all(folder("shared-out")).unwrap();
    let figures = std::fs::File::create(folder("shared-out").join("metrics.jsonl")).unwrap();
    figures.lock().unwrap();
    for transport in ["thread", "shm"] {
        let output = run("shared-out", &format!("--ranks 2 --epochs 1 --transport {transport}"));
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("a running training writes its figures to") && err.contains("--out"), "{err}");
    }
    clean("shared-out");
}

#[test]
fn a_secret_that_is_not_there_is_refused_however_the_ranks_start() {
    for transport in ["thread", "shm"] {
        let mut command = command("no-secret", &format!("--ranks 2 --epochs 1 --transport {transport}"));
        let output = command.env("HEXAGRAM_SECRET_FILE", "/nope").output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("/nope (HEXAGRAM_SECRET_FILE)"), "{err}");
    }
}

#[test]
fn a_working_directory_that_was_deleted_is_named() {
    let gone = folder("gone");
    std::fs::create_dir_all(&gone).unwrap();
    let within = format!("cd '{0}' && rmdir '{0}' && exec \"$0\" --ranks 2 --epochs 1", gone.display());
    let output = Command::new("sh").args(["-c", &within]).arg(program::program(PROGRAM)).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("the working directory was deleted"), "{err}");
}

#[test]
fn a_trace_of_all_ranks_is_left() {
    let file = folder("trace.json");
    report("trace", &format!("--ranks 2 --epochs 1 --trace '{}'", file.display()));
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().or(trace.as_array()).unwrap();
    for rank in [0, 1] {
        let of_rank = |event: &&Value| event["pid"] == rank && event["name"] == "loading";
        assert_eq!(
            events.iter().filter(of_rank).count(),
            45,
            "rank {rank}: 44 steps, and the end of the epoch"
        );
    }
    std::fs::remove_file(file).unwrap();
    clean("trace");
}

/// The names that `--algorithm list` prints, and the trigrams.
fn algorithms() -> Vec<(String, String)> {
    let output = command("list", "--algorithm list").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    };
    text.lines().map(words).collect()
}

/// One algorithm of each trigram; all of them in the deep check.
#[test]
fn algorithms_of_every_trigram_learn() {
    let mut found: Vec<String> = Vec::new();
    let mut all = algorithms();
    all.retain(|(_, trigram)| {
        let is_new = !found.contains(trigram);
        found.push(trigram.clone());
        is_new || testing::is_deep()
    });
    let names: Vec<String> = all.into_iter().map(|(name, _)| name).collect();
    assert!(names.len() >= 8, "{names:?}");
    for (name, transport) in names.iter().zip(["thread", "tcp", "shm"].iter().cycle()) {
        let run = format!("learns-{name}");
        let arguments = format!("--algorithm {name} --transport {transport} --ranks 4 --epochs 8");
        let report = report(&run, &arguments);
        let losses = losses(&run);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let first = mean(&losses[..4]);
        let last = mean(&losses[losses.len() - 22..]);
        assert!(last < 0.5 * first, "{name} over {transport}: {first} at first, {last} at last");
        assert!(report["bytes_of_gradient_all_reduce"].as_u64() > Some(0), "{report}");
        clean(&run);
    }
}
