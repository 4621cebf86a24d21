//! `hexagram run --max-restarts`: a job that fails starts again.

use crate::harness::{Launcher, by_rank, folder, run, shell};
use rustix::process::Signal;
use std::fs;

#[test]
fn a_failed_job_starts_again_with_a_new_rendezvous() {
    let script = "echo $HEXAGRAM_RESTART $HEXAGRAM_ADDR $(cat $HEXAGRAM_SECRET_FILE); \
        test $HEXAGRAM_RESTART = 2 || test $HEXAGRAM_RANK = 0 || exit 3";
    let ended = run(shell(&["-n", "2", "--max-restarts", "3"], script));
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    for lines in by_rank(&ended.stdout).values() {
        let starts: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
        assert!(starts.iter().map(|start| start[0]).eq(["0", "1", "2"]), "{lines:?}");
        // The old port may be free again, but the secret never returns.
        assert!(starts[0][2] != starts[1][2] && starts[1][2] != starts[2][2], "{lines:?}");
    }
    for (line, restart) in ended.stderr.iter().zip(1..) {
        assert!(line.starts_with("hexagram: rank 1 (pid "), "{line}");
        assert!(line.ends_with(&format!(") exited with code 3 first; restart {restart} of 3")), "{line}");
    }
    assert_eq!(ended.stderr.len(), 2, "{:?}", ended.stderr);
}

#[test]
fn the_last_restart_ends_the_job_with_its_error() {
    let ended = run(shell(&["-n", "2", "--max-restarts", "1"], "exit $((4 + HEXAGRAM_RESTART))"));
    assert_eq!(ended.code, Some(5), "{:?}", ended.stderr);
    assert!(ended.stderr[0].ends_with("exited with code 4 first; restart 1 of 1"), "{:?}", ended.stderr);
    assert!(ended.stderr[1].starts_with("hexagram run: rank "), "{:?}", ended.stderr);
    assert_eq!(ended.stderr.len(), 2, "{:?}", ended.stderr);
}

#[test]
fn an_interrupted_job_does_not_start_again() {
    // The first signal comes in the second start, as late as a test can send it without luck.
    let script = "test $HEXAGRAM_RESTART = 1 || exit 3; echo ready; sleep 600";
    let launcher = Launcher::start(shell(&["-n", "2", "--no-prefix", "--max-restarts", "5"], script));
    (0..2).for_each(|_| assert_eq!(launcher.line(), "ready"));
    launcher.signal(Signal::TERM);
    let ended = launcher.finish();
    assert_eq!(ended.code, Some(143));
    assert_eq!(ended.stderr.len(), 2, "{:?}", ended.stderr);
}

#[test]
fn each_start_has_logs_of_its_own() {
    let folder = folder("restart-logs");
    let options = ["-n", "1", "--max-restarts", "1", "--log-dir", folder.to_str().unwrap()];
    let ended = run(shell(&options, "echo start $HEXAGRAM_RESTART; exit $((1 - HEXAGRAM_RESTART))"));
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(read("rank-0.out"), "start 0\n");
    assert_eq!(read("restart-1/rank-0.out"), "start 1\n");
}

#[test]
fn a_job_that_makes_no_progress_ends_after_three_starts() {
    // As `hexagram::logical::note_checkpoint` sets the flags: a checkpoint in start 1, and none after it.
    let note = "printf \"\\00$1\" | dd of=/proc/self/fd/$HEXAGRAM_ATTENDANCE_FD bs=1 conv=notrunc \
        seek=$((HEXAGRAM_LOCAL_SIZE + HEXAGRAM_LOCAL_RANK)) 2>/dev/null";
    let script = format!(
        "note() {{ {note}; }}; note 1; test $HEXAGRAM_RESTART = 1 && note 2; exit $((10 + HEXAGRAM_RESTART))"
    );
    let ended = run(shell(&["-n", "1", "--max-restarts", "100"], &script));
    assert_eq!(ended.code, Some(14), "{:?}", ended.stderr);
    let stall = &ended.stderr[4];
    assert!(
        stall.starts_with("hexagram: 3 starts in a row failed without a new checkpoint: 1. rank 0"),
        "{stall}"
    );
    assert!([12, 13, 14].iter().all(|code| stall.contains(&format!("code {code}"))), "{stall}");
    assert_eq!(ended.stderr.len(), 6, "{:?}", ended.stderr);
}
