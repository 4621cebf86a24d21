//! Restarts of `hexagram run` on several machines.

use crate::harness::{Ended, Launcher, by_rank, run};
use crate::nodes::Job;
use rustix::process::Signal;
use std::fs;
use std::process::Command;

/// Prints rank, size and secret of each start. Rank 3 of the first start fails; the others, which nothing connects with it, are
/// ended by their launchers.
const FAILS_ONCE: &str = "echo $HEXAGRAM_RESTART $HEXAGRAM_RANK/$HEXAGRAM_SIZE $(cat $HEXAGRAM_SECRET_FILE); \
    test $HEXAGRAM_RESTART = 0 || exit 0; test $HEXAGRAM_RANK = 3 && exit 5; sleep 600";

fn shell(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

/// Starts the launchers, ends all, in their order.
fn all(commands: impl IntoIterator<Item = Command>) -> Vec<Ended> {
    let launchers: Vec<Launcher> = commands.into_iter().map(Launcher::start).collect();
    launchers.into_iter().map(Launcher::finish).collect()
}

#[test]
fn a_failure_on_one_machine_starts_the_ranks_of_all_again() {
    let job = Job::new(11);
    let node = |number| job.node(number, &["--max-restarts", "2"], &shell(FAILS_ONCE));
    let ended = all([node("1"), node("0")]);
    let mut secrets = Vec::new();
    for (ended, ranks) in ended.iter().zip([[2, 3], [0, 1]]) {
        assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
        assert_eq!(ended.stderr.len(), 1, "{:?}", ended.stderr);
        assert!(ended.stderr[0].ends_with("exited with code 5; restart 1 of 2"), "{:?}", ended.stderr);
        let lines = by_rank(&ended.stdout);
        assert!(lines.keys().eq(&ranks), "{lines:?}");
        for (rank, lines) in lines {
            let fields: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
            let place = format!("{rank}/4");
            assert_eq!([fields[0][..2].to_vec(), fields[1][..2].to_vec()], [["0", &place], ["1", &place]]);
            secrets.push([fields[0][2].to_owned(), fields[1][2].to_owned()]);
        }
    }
    // One secret for each start, on all machines.
    assert!(secrets.iter().all(|both| *both == secrets[0]) && secrets[0][0] != secrets[0][1], "{secrets:?}");
}

#[test]
fn a_machine_that_is_gone_is_left_out_and_taken_in_when_it_comes_back() {
    let job = Job::new(12);
    let go = job.secret.with_file_name("go");
    // Ranks of a shell do not notice that others are gone, so those of start 0 wait for a file. Two ranks fail until the
    // other launcher is back.
    let script = format!(
        "echo $HEXAGRAM_RESTART $HEXAGRAM_RANK/$HEXAGRAM_SIZE; \
        test $HEXAGRAM_RESTART = 0 || {{ sleep .1; exit $((4 - HEXAGRAM_SIZE)); }}; \
        until test -e {}; do sleep .1; done; exit 3",
        go.display()
    );
    let options = ["--max-restarts", "10000", "--rejoin-wait", "1", "--no-prefix"];
    let node = |number| job.node_of("1:2", number, &options, &shell(&script));
    let leader = Launcher::start(node("0"));
    let gone = Launcher::start(node("1"));
    let two = |launcher: &Launcher| {
        let mut lines = [launcher.line(), launcher.line()];
        lines.sort();
        lines
    };
    assert_eq!(two(&leader), ["0 0/4", "0 1/4"]);
    assert_eq!(two(&gone), ["0 2/4", "0 3/4"]);
    gone.signal(Signal::KILL);
    assert_eq!(gone.finish().code, None);
    fs::write(go, "").unwrap();
    assert_eq!(two(&leader), ["1 0/2", "1 1/2"]);
    let back = Launcher::start(node("1")).finish();
    let leader = leader.finish();
    for (ended, ranks) in [(&leader, ["0/4", "1/4"]), (&back, ["2/4", "3/4"])] {
        assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
        let last = &ended.stdout[ended.stdout.len() - 2..];
        assert!(ranks.iter().all(|rank| last.iter().any(|line| line.ends_with(rank))), "{last:?}");
    }
}

#[test]
fn too_few_machines_end_the_job_with_the_missing_one() {
    let job = Job::new(13);
    let script = "test $TEST_NODE = 1 && kill -9 $PPID; sleep .3; exit 3";
    let options = ["--max-restarts", "3", "--rejoin-wait", "1"];
    let node = |number: &str| {
        let mut command = job.node(number, &options, &shell(script));
        command.env("TEST_NODE", number);
        command
    };
    let ended = all([node("1"), node("0")]);
    assert_eq!(ended[1].code, Some(1), "{:?}", ended[1].stderr);
    let report = ended[1].stderr.last().unwrap();
    let what = "1 of at least 2 machines have joined after 1 s; node 1 is missing";
    assert!(report.contains(what) && report.contains("--nnodes MIN:MAX"), "{report}");
}

#[test]
fn launchers_with_different_options_are_refused() {
    let job = Job::new(14);
    let script = shell("sleep 600");
    let leader = Launcher::start(job.node("0", &["--max-restarts", "1"], &script));
    let ended = run(job.node_of("3", "2", &["--max-restarts", "1"], &script));
    assert_eq!(ended.code, Some(1), "{:?}", ended.stderr);
    assert!(ended.stderr[0].contains("node 2 cannot join a job of 2 machines"), "{:?}", ended.stderr);
    leader.signal(Signal::TERM);
    assert_eq!(leader.finish().code, Some(143));
}

#[test]
fn a_signal_to_one_launcher_ends_the_job_on_all_machines() {
    let job = Job::new(15);
    let script = shell("echo ready; sleep 600");
    let node = |number| job.node(number, &["--max-restarts", "3", "--no-prefix"], &script);
    let (leader, other) = (Launcher::start(node("0")), Launcher::start(node("1")));
    for launcher in [&leader, &other] {
        (0..2).for_each(|_| assert_eq!(launcher.line(), "ready"));
    }
    other.signal(Signal::TERM);
    assert_eq!(other.finish().code, Some(143));
    assert_eq!(leader.finish().code, Some(1));
}

#[test]
fn with_grow_a_machine_joins_as_soon_as_it_comes() {
    let job = Job::new(16);
    // No rank ends before there are four.
    let script = "echo $HEXAGRAM_RESTART $HEXAGRAM_SIZE; test $HEXAGRAM_SIZE = 4 || sleep 600";
    let node = |number: &str, options: &[&str]| job.node_of("1:2", number, options, &shell(script));
    let leader = Launcher::start(node("0", &["--grow", "--rejoin-wait", "1", "--no-prefix"]));
    (0..2).for_each(|_| assert_eq!(leader.line(), "0 2"));
    let other = run(node("1", &["--no-prefix"]));
    let leader = leader.finish();
    for ended in [&leader, &other] {
        assert_eq!((ended.code, &ended.stdout[..]), (Some(0), &["1 4".to_owned(), "1 4".to_owned()][..]));
        assert!(ended.stderr[0].starts_with("hexagram: node 1 joins; restart 1"), "{:?}", ended.stderr);
    }
}

#[test]
fn a_machine_that_works_longer_than_the_others_is_waited_for() {
    let job = Job::new(17);
    let script = "test $HEXAGRAM_RANK = 3 && sleep 3; echo $HEXAGRAM_RESTART";
    let options = ["--max-restarts", "1", "--rejoin-wait", "1", "--no-prefix"];
    let ended = all(["1", "0"].map(|number| job.node(number, &options, &shell(script))));
    for ended in ended {
        assert_eq!((ended.code, ended.stdout.len()), (Some(0), 2), "{:?} {:?}", ended.stdout, ended.stderr);
        assert_eq!(ended.stderr, [""; 0]);
    }
}

#[test]
fn a_launcher_whose_ranks_succeeded_reports_that_the_job_failed() {
    let job = Job::new(18);
    let script = "test $HEXAGRAM_RANK -lt 2 || exit 3";
    let ended = all(["1", "0"].map(|number| job.node(number, &["--max-restarts", "1"], &shell(script))));
    assert_eq!(
        (ended[0].code, ended[1].code),
        (Some(3), Some(1)),
        "{:?} {:?}",
        ended[0].stderr,
        ended[1].stderr
    );
    let report = ended[1].stderr.last().unwrap();
    assert!(
        report.contains("another node failed: rank 2") || report.contains("another node failed: rank 3"),
        "{report}"
    );
}
