//! `hexagram run --elastic`: ranks continue in the same processes when one of them dies or one arrives.

mod job;
mod machines;
mod program;

use crate::harness::{hexagram, run, shell};
use hexagram::physical::testing::is_deep;
use job::{Elastic, report, signal};
use program::{HOLD, TURN};
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn random() -> u64 {
    u64::from_le_bytes(hexagram::physical::bootstrap::random().unwrap())
}

#[test]
#[ignore = "the other tests start it as a process"]
fn one_rank() {
    program::run();
}

#[test]
fn any_rank_may_die_until_too_few_are_left() {
    ["mixed", "shm", "tcp"].into_iter().for_each(die_until_too_few_are_left);
}

fn die_until_too_few_are_left(transport: &str) {
    let script = format!("export HEXAGRAM_TRANSPORT={transport};");
    let mut job = Elastic::start_by("elastic-die", &["-n", "4", "--elastic", "2"], &[], &script);
    let (first, pids) = job.next(0, 4);
    let killed = signal(pids[0], Signal::KILL);
    let (second, left) = job.next(first, 3);
    report("from the death of rank 0 to an operation of the others", killed.elapsed());
    assert_eq!(left, pids[1..]);
    let killed = signal(left[2], Signal::KILL);
    let (_, left) = job.next(second, 2);
    report("from the death of a member to an operation of the others", killed.elapsed());
    assert_eq!(left, pids[1..3]);
    assert!(job.errors.iter().all(|error| error.contains("continue with World::next")), "{:?}", job.errors);
    signal(left[1], Signal::KILL);
    let ended = job.launcher.finish();
    assert_eq!(ended.code, Some(137), "{:?}", ended.stderr);
    let deaths: Vec<_> = ended.stderr.iter().filter(|line| line.starts_with("hexagram: rank ")).collect();
    assert!(
        deaths[0].starts_with(&format!("hexagram: rank 0 (pid {}) was killed by", pids[0])),
        "{deaths:?}"
    );
    assert!(deaths[0].ends_with("; 3 processes continue") && deaths[1].ends_with("; 2 processes continue"));
    let last = ended.stderr.iter().find(|line| line.starts_with("hexagram run: ")).unwrap();
    assert!(last.starts_with(&format!("hexagram run: rank 2 (pid {}) was killed", left[1])), "{last}");
}

#[test]
fn processes_start_in_place_of_the_dead_and_the_job_is_a_success() {
    let mut job = Elastic::start("elastic-start", &["-n", "3", "--elastic", "1", "--max-restarts", "3"], &[]);
    let (first, pids) = job.next(0, 3);
    signal(pids[0], Signal::KILL);
    let (second, pids) = {
        let (number, now) = job.next(first, 3);
        assert_eq!(now[..2], pids[1..]);
        (number, now)
    };
    // Two at the same moment.
    signal(pids[1], Signal::KILL);
    signal(pids[2], Signal::KILL);
    let (_, now) = job.next(second, 3);
    assert_eq!(now[0], pids[0]);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let joined = ended.stderr.iter().filter(|line| line.starts_with("hexagram: joined: pid ")).count();
    assert!((2..=3).contains(&joined), "{:?}", ended.stderr);
}

#[test]
fn deaths_while_a_generation_forms_do_not_hang() {
    let mut job =
        Elastic::start("elastic-forming", &["-n", "4", "--elastic", "1", "--max-restarts", "100"], &[]);
    let (mut number, mut pids) = job.next(0, 4);
    for pause in [0, 2, 5, 10, 20, 40] {
        signal(pids[pause as usize % 4], Signal::KILL);
        std::thread::sleep(Duration::from_millis(pause));
        signal(pids[(pause as usize + 1) % 4], Signal::KILL);
        (number, pids) = job.next(number, 4);
    }
    assert_eq!(job.stop().code, Some(0));
}

/// Under `./test deep`, for 10 minutes.
#[test]
fn kills_at_random_moments_do_not_hang() {
    let mut job =
        Elastic::start("elastic-random", &["-n", "8", "--elastic", "1", "--max-restarts", "100000"], &[]);
    let (mut number, _) = job.next(0, 8);
    let (until, longest) =
        if is_deep() { (Duration::from_secs(600), 2000) } else { (Duration::from_secs(3), 500) };
    let since = Instant::now();
    let mut took = Vec::new();
    while since.elapsed() < until {
        std::thread::sleep(Duration::from_millis(longest / 4 + random() % (3 * longest / 4)));
        // More than one generation may have begun meanwhile.
        job.read_arrived();
        let pids;
        (number, pids) = job.next_of_any_size(number - 1);
        let killed = signal(pids[random() as usize % pids.len()], Signal::KILL);
        (number, _) = job.next_of_any_size(number);
        took.push(killed.elapsed());
    }
    took.sort();
    report(&format!("{} kills, median", took.len()), took[took.len() / 2]);
    report("worst", took[took.len() - 1]);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr.last());
}

#[test]
fn a_stopped_rank_is_left_behind_and_killed() {
    let options = ["-n", "3", "--elastic", "2", "--rejoin-wait", "600"];
    let mut job = Elastic::start_by("elastic-silence", &options, &[], "export HEXAGRAM_SILENCE=1;");
    let (first, pids) = job.next(0, 3);
    signal(pids[0], Signal::STOP);
    let (_, left) = job.next(first, 2);
    assert_eq!(left, pids[1..]);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
}

#[test]
fn a_rank_that_is_stopped_while_a_generation_forms_is_left_behind() {
    let options = ["-n", "4", "--elastic", "1", "--rejoin-wait", "1", "--max-restarts", "1000"];
    let script = "export HEXAGRAM_SILENCE=1 HEXAGRAM_TEST_JOIN=2;";
    let mut job = Elastic::start_by("elastic-stopped", &options, &[], script);
    let (mut number, mut pids) = job.next(0, 4);
    for _ in 0..if is_deep() { 50 } else { 1 } {
        let victim = random() as usize % 4;
        signal(pids[victim], Signal::KILL);
        std::thread::sleep(Duration::from_millis(random() % 30));
        let stopped = pids[(victim + 1) % 4];
        signal(stopped, Signal::STOP);
        while pids.contains(&stopped) {
            (number, pids) = job.next(number, 4);
        }
    }
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
}

#[test]
fn a_program_that_fails_at_its_start_does_not_end_the_others() {
    let options = ["-n", "3", "--elastic", "2", "--max-restarts", "2"];
    let mut job = Elastic::start_by("elastic-fails", &options, &[], "test $HEXAGRAM_RANK = 1 && exit 3;");
    job.next(0, 2);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let deaths = ended.stderr.iter().filter(|line| line.contains("exited with code 3")).count();
    assert_eq!(deaths, 3, "{:?}", ended.stderr);
}

#[test]
fn an_arrival_ends_operations_in_flight() {
    let options = ["-n", "3", "--elastic", "1", "--max-restarts", "1"];
    let mut job = Elastic::start("elastic-arrival", &options, &[HOLD]);
    let (first, pids) = job.next(0, 3);
    signal(pids[2], Signal::KILL);
    let (_, now) = job.next(first, 3);
    assert_eq!(now[..2], pids[..2]);
    let is_arrival =
        |error: &String| error.contains("generation 2 ends: a process waits to join during all_reduce");
    assert!(job.errors.iter().any(is_arrival), "{:?}", job.errors);
    let (launcher, errors) = (job.launcher, job.errors);
    launcher.signal(Signal::INT);
    assert_eq!(launcher.finish().code, Some(130), "{errors:?}");
}

#[test]
fn a_rank_that_ends_with_success_is_not_replaced() {
    let mut job = Elastic::start("elastic-leave", &["-n", "3", "--elastic", "3", "--max-restarts", "9"], &[]);
    let (first, pids) = job.next(0, 3);
    job.write(&format!("leave-{}", pids[1]));
    let (_, left) = job.next(first, 2);
    assert_eq!(left, [pids[0], pids[2]]);
    let ended = job.stop();
    assert_eq!((ended.code, ended.stderr.len()), (Some(0), 0), "{:?}", ended.stderr);
}

#[test]
fn a_rank_with_an_error_of_its_own_ends_and_the_others_continue() {
    let mut job = Elastic::start("elastic-fault", &["-n", "3", "--elastic", "2"], &[]);
    let (first, pids) = job.next(0, 3);
    job.write(&format!("fail-{}", pids[2]));
    assert_eq!(job.next(first, 2).1, pids[..2]);
    // Its own reason, or its exit, which the launcher reports.
    let culprit = format!("pid {}) ", pids[2]);
    assert!(job.errors.iter().all(|error| error.contains(&culprit)), "{:?}", job.errors);
    let ended = job.stop();
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
}

#[test]
fn nothing_is_left_of_generations_that_have_ended() {
    let job = Elastic::start("elastic-turn", &["-n", "3", "--elastic", "1"], &[TURN]);
    let ended = job.launcher.finish();
    assert_eq!(ended.code, Some(0), "{:?}\n{:?}", ended.stderr, ended.stdout);
}

#[test]
fn programs_that_never_join_run_as_in_other_jobs() {
    assert_eq!(run(shell(&["-n", "3", "--elastic", "2"], "true")).code, Some(0));
    assert_eq!(run(shell(&["-n", "2", "--elastic", "2"], "exit 4")).code, Some(4));
}

#[test]
fn impossible_jobs_are_refused_with_a_remedy() {
    for (options, remedy) in [
        (["-n", "4", "--elastic", "5"], "from 1 to the number of ranks"),
        (["-n", "4", "--elastic", "0"], "from 1 to the number of ranks"),
    ] {
        let mut command = hexagram(&options);
        command.args(["--", "true"]);
        let ended = run(command);
        let said = ended.stderr.concat();
        assert!(ended.code != Some(0) && said.contains(remedy), "{options:?}: {said}");
    }
}
