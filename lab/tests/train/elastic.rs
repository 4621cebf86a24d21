//! A training whose processes are killed, and which continues without a restart.

use super::{clean, folder, metrics, program};
use hexagram::launch::{Job, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Processes of this one that run the training.
fn ranks() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let children = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let children = tasks.flatten().map(children).collect::<Vec<_>>().join(" ");
    let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let trains = |pid: &i32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("elastic")
    };
    pids.filter(trains).collect()
}

/// Number of epochs that the members have finished so far.
fn epochs(name: &str) -> usize {
    let text = fs::read_to_string(folder(name).join("metrics.jsonl")).unwrap_or_default();
    text.lines().filter(|line| line.contains(r#""event":"epoch""#)).count()
}

/// Trains with 4 ranks, at least 2, and kills the process at each of the places `kills` after further epochs. Returns the
/// report, and how many were killed before the end.
fn train(name: &str, arguments: &str, kills: &[usize]) -> (serde_json::Value, usize) {
    let out = folder(name);
    let _ = fs::remove_dir_all(&out);
    let arguments = format!("--seed 1 --out '{}' {arguments}", out.display());
    let job = Job {
        elastic: Some(2),
        max_restarts: 2,
        arguments: shell_words::split(&arguments).unwrap().into_iter().map(Into::into).collect(),
        ..Job::new(4, program::program("train"))
    };
    let mut killed = 0;
    let outcome = thread::scope(|scope| {
        let running = scope.spawn(|| job.run());
        for place in kills {
            let (before, since) = (epochs(name), Instant::now());
            while epochs(name) <= before && !running.is_finished() {
                assert!(since.elapsed() < Duration::from_secs(300), "{name}: no epoch ends");
                thread::sleep(Duration::from_millis(5));
            }
            let ranks = ranks();
            if let Some(pid) = ranks.get(place % ranks.len().max(1)) {
                killed += usize::from(kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).is_ok());
            }
        }
        running.join().unwrap()
    });
    assert_eq!(outcome.unwrap(), Outcome::Success, "{name}");
    (metrics(name).pop().unwrap(), killed)
}

#[test]
fn a_training_whose_ranks_are_killed_continues_in_place_and_learns_as_much() {
    for algorithm in ["gradient-allreduce", "d-psgd"] {
        // Long enough for three kills.
        let epochs = if cfg!(debug_assertions) { 14 } else { 600 };
        let saved = folder("elastic-saved");
        let _ = fs::remove_dir_all(&saved);
        let arguments = format!(
            "--algorithm {algorithm} --epochs {epochs} --checkpoint '{}' --every {}",
            saved.display(),
            epochs * 2
        );
        // The first of the processes is rank 0. After two new ones, the others continue by themselves.
        let (report, killed) = train("elastic", &arguments, &[0, 2, 1]);
        assert_eq!(killed, 3);
        assert_eq!(report["event"], "summary");
        let events =
            |name: &'static str| metrics("elastic").into_iter().filter(move |line| line["event"] == name);
        let steps: Vec<u64> = events("step").map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(
            steps,
            (1..=steps.len() as u64).collect::<Vec<_>>(),
            "{algorithm}: each step once, in order"
        );
        let of_epochs: Vec<u64> = events("epoch").map(|line| line["epoch"].as_u64().unwrap()).collect();
        assert_eq!(of_epochs, (1..=epochs).collect::<Vec<_>>(), "{algorithm}");
        assert!(events("step").all(|line| line["loss"].is_f64()), "{algorithm}");
        assert!(report["test_accuracy"].as_f64().unwrap() >= 0.93, "{report}");
        assert_eq!(report["replicas_identical"], algorithm == "gradient-allreduce", "{report}");
        // A new one may be late for the end.
        assert!(matches!(report["ranks"].as_u64(), Some(2 | 3)), "{report}");
        clean("elastic");
        assert!(fs::read_dir(&saved).unwrap().count() >= 1);
        clean("elastic-saved");
    }
}
