//! Processes that are killed, stopped, cut off or late: every other process names the one that caused it.

#[cfg(feature = "cuda")]
mod gpus;
pub(super) mod ranks;

use super::job::{Failed, Job, on_this_host, random};
use super::network::Hosts;
use hexagram_logical::{TransportKind, testing};
use rustix::process::Signal;
use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Far above the documented 1 s, as the machine may be busy; the tests print the measured time.
const PROMPT: Duration = Duration::from_secs(60);
/// The same for a process that has fallen silent, for which 5 s are promised.
const SILENT: Duration = Duration::from_secs(60);

/// Prints a figure even if the test's output is captured.
fn report(what: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{what}");
}

/// Every transport that connects processes.
fn transports() -> impl Iterator<Item = TransportKind> {
    testing::TRANSPORTS.into_iter().filter(|transport| *transport != TransportKind::Thread)
}

/// The longest time after `since` in which one of `ranks` named `culprit`, and no other rank, in an error that
/// contains `cause`.
fn all_blame(
    job: &mut Job,
    ranks: impl Iterator<Item = usize>,
    culprit: usize,
    cause: &str,
    since: Instant,
) -> Duration {
    let mut worst = Duration::ZERO;
    for rank in ranks {
        let failed = job.failure(rank);
        let Failed { culprit: blamed, at, text } = &failed;
        assert!(*blamed == Some(culprit) && text.contains(cause), "rank {rank}: {failed:?}");
        assert!(text.contains("host ") && text.contains("pid "), "{text}");
        worst = worst.max(at.saturating_duration_since(since));
    }
    worst
}

/// One job in which one rank is killed at a random moment; returns the time of the slowest survivor.
fn kill_one(transport: TransportKind) -> Duration {
    let size = 2 + random(7);
    let victim = random(size);
    let mut job = Job::start("collectives", transport, size);
    job.all_hear("joined");
    thread::sleep(Duration::from_micros(random(300_000) as u64));
    let killed = job.signal(victim, Signal::KILL);
    let survivors = (0..size).filter(|rank| *rank != victim);
    let worst = all_blame(&mut job, survivors, victim, "died", killed);
    assert!(worst < PROMPT, "{size} ranks over {transport} took {worst:?}");
    job.ends();
    worst
}

#[test]
fn a_rank_that_is_killed_is_named_by_every_survivor() {
    let kills = if testing::is_deep() { 20 } else { 2 };
    for transport in transports() {
        let mut took: Vec<Duration> = (0..kills).map(|_| kill_one(transport)).collect();
        took.sort();
        let median = took[kills / 2];
        let worst = took[kills - 1];
        let late = took.iter().filter(|took| **took > Duration::from_secs(1)).count();
        report(format_args!(
            "{kills} kills over {transport}: named after {median:.0?} (median), {worst:.0?} (worst), {late} later than 1 s"
        ));
    }
}

/// Kills each of three ranks that play `role`; the survivors name it.
fn kill_each(role: &str) {
    for transport in transports() {
        for victim in 0..3 {
            let mut job = Job::start(role, transport, 3);
            job.all_hear("ready");
            let killed = job.signal(victim, Signal::KILL);
            let survivors = (0..3).filter(|rank| *rank != victim);
            let worst = all_blame(&mut job, survivors, victim, "died", killed);
            assert!(worst < PROMPT, "over {transport} it took {worst:?}");
            job.ends();
        }
    }
}

#[test]
fn a_killed_rank_ends_what_others_wait_for_in_the_background() {
    kill_each("background");
}

#[test]
fn a_killed_rank_ends_what_threads_wait_for_that_share_an_endpoint() {
    kill_each("executor");
}

#[test]
fn a_killed_rank_ends_what_others_want_of_its_shard_and_clock() {
    kill_each("server");
    kill_each("stale server");
}

#[test]
fn a_killed_rank_ends_what_others_want_of_its_window() {
    kill_each("window");
}

#[test]
fn a_killed_rank_ends_pair_exchanges_and_their_locks() {
    kill_each("pairs");
}

#[test]
fn a_rank_that_is_killed_keeps_nobody_from_ending_its_service() {
    kill_each("closing");
}

#[test]
fn a_rank_that_is_stopped_is_named_and_does_not_go_on() {
    let jobs = transports().flat_map(|transport| [(transport, 0), (transport, 1)]);
    thread::scope(|scope| {
        for (transport, victim) in jobs {
            scope.spawn(move || {
                let mut job = Job::start("collectives", transport, 3);
                job.all_hear("ready");
                let stopped = job.signal(victim, Signal::STOP);
                let others = (0..3).filter(|rank| *rank != victim);
                let worst = all_blame(&mut job, others, victim, "has been silent", stopped);
                report(format_args!("rank {victim} stopped over {transport}: named after {worst:.1?}"));
                assert!(worst < SILENT, "{worst:?}");
                job.signal(victim, Signal::CONT);
                // It gets an error about itself; its peers may be gone by then.
                job.failure(victim);
                job.ends();
            });
        }
    });
}

#[test]
fn a_whole_job_may_be_stopped_and_go_on() {
    let start = |transport| Job::start("impatient collectives", transport, 3);
    let mut jobs: Vec<Job> = transports().map(start).collect();
    jobs.iter_mut().for_each(|job| job.all_hear("ready"));
    let signal = |signal| {
        for (job, rank) in jobs.iter().flat_map(|job| (0..3).map(move |rank| (job, rank))) {
            job.signal(rank, signal);
        }
    };
    // As by Ctrl-Z; longer than a silence, and than the deadline of the operations.
    signal(Signal::STOP);
    thread::sleep(Duration::from_secs(8));
    signal(Signal::CONT);
    thread::sleep(Duration::from_secs(2));
    for mut job in jobs {
        // No rank has failed before, so this is the first failure.
        let killed = job.signal(2, Signal::KILL);
        all_blame(&mut job, 0..2, 2, "died", killed);
        job.ends();
    }
}

/// Creates two hosts; reports if this process may not.
fn two_hosts() -> Option<Hosts> {
    let hosts = Hosts::start(2);
    if hosts.is_none() {
        report(format_args!("skipped: network namespaces need root and the `ip` program"));
    }
    hosts
}

/// Starts a job of four ranks over each transport that reaches other hosts, ranks 0 and 1 on the first host, 2 and 3 on
/// the second. Returns them once all ranks are ready.
fn start_across(hosts: &Hosts) -> Vec<(TransportKind, Job)> {
    let across = transports().filter(|transport| *transport != TransportKind::Shm);
    let start = |(port, transport)| (transport, Job::of(hosts.ranks(4, port), "collectives", transport));
    let mut jobs: Vec<_> = (29500..).zip(across).map(start).collect();
    jobs.iter_mut().for_each(|(_, job)| job.all_hear("ready"));
    jobs
}

/// The longest time after `since` in which a rank of a job of [`start_across`] named one of the other host as silent.
fn all_name_the_other_side(job: &mut Job, transport: TransportKind, since: Instant) -> Duration {
    let mut worst = Duration::ZERO;
    for rank in 0..4 {
        let Failed { culprit, at, text } = job.failure(rank);
        let across = culprit.is_some_and(|culprit| culprit / 2 != rank / 2);
        assert!(across && text.contains("has been silent"), "rank {rank} over {transport}: {text}");
        worst = worst.max(at.saturating_duration_since(since));
    }
    worst
}

#[test]
fn both_sides_of_a_cut_link_name_the_other() {
    let Some(hosts) = two_hosts() else { return };
    let jobs = start_across(&hosts);
    let cut = hosts.cut();
    for (transport, mut job) in jobs {
        let worst = all_name_the_other_side(&mut job, transport, cut);
        report(format_args!("link cut over {transport}: named on both sides after {worst:.1?}"));
        assert!(worst < SILENT, "{worst:?}");
        job.ends();
    }
}

/// The system has ended the connection before the ranks continue.
#[test]
fn ranks_that_are_stopped_while_a_link_is_cut_name_the_other_side() {
    let Some(hosts) = two_hosts() else { return };
    let jobs = start_across(&hosts);
    let cut = hosts.cut();
    // The heartbeats of this second are never acknowledged.
    thread::sleep(Duration::from_secs(1));
    let signal = |signal| {
        for (job, rank) in jobs.iter().flat_map(|(_, job)| (0..4).map(move |rank| (job, rank))) {
            job.signal(rank, signal);
        }
    };
    signal(Signal::STOP);
    thread::sleep(Duration::from_secs(8));
    signal(Signal::CONT);
    for (transport, mut job) in jobs {
        all_name_the_other_side(&mut job, transport, cut);
        job.ends();
    }
}

/// The same command with a separate parent: a shell with the name `name`.
fn under(name: &str, folder: &Path, command: &Command) -> Command {
    let shell = folder.join(name);
    if !shell.exists() {
        symlink("/bin/sh", &shell).unwrap();
    }
    let mut parent = Command::new(shell);
    // Not replaced by the program, which would then have no such parent.
    parent.args(["-c", "\"$@\"; exit $?", "sh"]).arg(command.get_program());
    parent.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    parent
}

#[test]
fn a_rank_whose_launcher_is_killed_ends_and_is_named() {
    let folder = env::temp_dir().join(format!("hexagram-launchers-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let launchers = ["mpirun", "hydra_pmi_proxy", "sh"];
    let commands = on_this_host(3).zip(launchers).map(|(command, name)| under(name, &folder, &command));
    let mut job = Job::of(commands, "collectives", TransportKind::Shm);
    job.all_hear("ready");
    // A process started from a shell continues without it.
    job.signal(2, Signal::KILL);
    thread::sleep(Duration::from_secs(1));
    let killed = job.signal(0, Signal::KILL);
    let worst = all_blame(&mut job, 0..3, 0, "lost its launcher, mpirun (pid", killed);
    report(format_args!("launcher killed: named after {worst:.2?}"));
    assert!(worst < PROMPT, "{worst:?}");
    job.ends();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_link_cut_in_one_direction_ends_both_sides() {
    for deaf in [0, 1] {
        let Some(hosts) = two_hosts() else { return };
        let jobs = start_across(&hosts);
        let Some(cut) = hosts.deafen(deaf) else {
            report(format_args!("skipped: this system's switch floods everything"));
            return;
        };
        for (transport, mut job) in jobs {
            let mut worst = Duration::ZERO;
            for rank in 0..4 {
                let Failed { culprit, at, text } = job.failure(rank);
                // Rank 1 shares the host of rank 0, to which all speak.
                assert!(
                    culprit.is_some_and(|culprit| culprit != 1) && text.contains("has been silent"),
                    "{text}"
                );
                worst = worst.max(at.saturating_duration_since(cut));
            }
            report(format_args!("nothing reaches host {deaf} over {transport}: named after {worst:.2?}"));
            assert!(worst < SILENT, "{worst:?}");
            job.ends();
        }
    }
}

#[test]
fn a_rank_that_pauses_for_less_than_a_silence_is_not_named() {
    const PAUSE: Duration = Duration::from_millis(2500);
    let jobs = || transports().flat_map(|transport| [(transport, 0), (transport, 1)]);
    thread::scope(|scope| {
        for (number, (transport, victim)) in (0..).zip(jobs()) {
            scope.spawn(move || {
                let mut job = Job::start("collectives", transport, 3);
                job.all_hear("ready");
                // At different moments between two heartbeats.
                thread::sleep(Duration::from_millis(45 * number));
                let stopped = job.signal(victim, Signal::STOP);
                thread::sleep(PAUSE);
                let went_on = job.signal(victim, Signal::CONT);
                if went_on - stopped > PAUSE + Duration::from_millis(500) {
                    return report(format_args!("skipped: this machine has paused for longer itself"));
                }
                thread::sleep(Duration::from_secs(1));
                let killed = job.signal(2, Signal::KILL);
                all_blame(&mut job, 0..2, 2, "died", killed);
                job.ends();
            });
        }
    });
}

#[test]
fn whoever_starts_a_job_says_for_how_long_a_rank_may_be_silent() {
    let start = |silence: &'static str| {
        let told = move |mut command: Command| {
            command.env("HEXAGRAM_SILENCE", silence);
            command
        };
        Job::of(on_this_host(3).map(told), "collectives", TransportKind::Shm)
    };
    let [mut hasty, mut patient, mut refused] = ["2", "600", "0.5"].map(start);
    for rank in 0..3 {
        let Failed { text, .. } = refused.failure(rank);
        assert!(text.contains("HEXAGRAM_SILENCE=0.5") && text.contains("1 to 86400 seconds"), "{text}");
    }
    hasty.all_hear("ready");
    patient.all_hear("ready");
    let stopped = hasty.signal(1, Signal::STOP);
    patient.signal(1, Signal::STOP);
    let worst = all_blame(&mut hasty, [0, 2].into_iter(), 1, "has been silent", stopped);
    report(format_args!("silence of 2 s: named after {worst:.1?}"));
    // Longer than the default, too.
    thread::sleep(Duration::from_secs(5));
    patient.signal(1, Signal::CONT);
    thread::sleep(Duration::from_secs(1));
    let killed = patient.signal(2, Signal::KILL);
    all_blame(&mut patient, 0..2, 2, "died", killed);
}

#[test]
fn a_chain_of_waits_is_followed_to_the_rank_that_is_late() {
    for transport in transports() {
        let mut job = Job::start("chain", transport, 3);
        job.all_hear("ready");
        for rank in 0..2 {
            let (_, warning) = job.hears(rank, "has waited");
            assert!(warning.contains(&format!("for rank {} (host", rank + 1)), "{warning}");
            assert!(
                warning.contains("missing: rank 2 (host") && warning.contains("in no operation"),
                "{warning}"
            );
            assert!(warning.contains("send/recv(1 × f32)") && warning.contains("operation #0"), "{warning}");
        }
        // Either may give up first; the others get the failure, also the late one.
        for rank in 0..3 {
            let Failed { culprit, text, .. } = job.failure(rank);
            assert!(culprit == Some(2) && text.contains("alive"), "rank {rank}: {text}");
            assert!(rank == 2 || text.contains("operation #0"), "rank {rank}: {text}");
        }
        job.ends();
    }
}

#[test]
fn a_rank_that_does_not_come_to_a_collective_is_named_by_all_that_did() {
    for transport in transports() {
        let mut job = Job::start("absent", transport, 4);
        for rank in 0..3 {
            let (_, warning) = job.hears(rank, "has waited");
            assert!(warning.contains("missing: rank 3 (host"), "{warning}");
            assert!(warning.contains("all_reduce(1 × f32, sum)"), "{warning}");
        }
        for rank in 0..4 {
            let Failed { culprit, text, .. } = job.failure(rank);
            assert!(culprit == Some(3) && text.contains("alive"), "rank {rank}: {text}");
            assert!(text.contains("all_reduce(1 × f32, sum)") && text.contains("operation #0"), "{text}");
        }
        job.ends();
    }
}

#[test]
fn a_rank_that_has_finished_is_named_by_all_that_need_it() {
    for transport in transports() {
        let mut job = Job::start("leaver", transport, 3);
        let started = Instant::now();
        all_blame(&mut job, 0..2, 2, "finished without taking part", started);
        job.hears(2, "finished");
        job.ends();
    }
}

#[test]
fn a_rank_that_ends_as_soon_as_it_knows_of_its_failure_has_said_why() {
    for (role, culprit) in [("first quits", 0), ("last quits", 2)] {
        for transport in transports() {
            let mut job = Job::start(role, transport, 3);
            let started = Instant::now();
            all_blame(&mut job, (0..3).filter(|rank| *rank != culprit), culprit, "lost its data", started);
            job.ends();
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_are_told_in_what() {
    let mut job = Job::start("circle", TransportKind::Shm, 2);
    for rank in 0..2 {
        let Failed { text, .. } = job.failure(rank);
        let [mine, theirs] = [rank, 1 - rank].map(|rank| format!("send/recv({} × f32)", 1 + rank));
        assert!(text.contains(&mine) && text.contains(&theirs), "rank {rank}: {text}");
        assert!(text.contains("same order"), "rank {rank}: {text}");
    }
    job.ends();
}

#[test]
fn when_rank_0_has_finished_the_others_are_still_watched() {
    for (signal, cause) in [(Signal::KILL, "died"), (Signal::STOP, "has been silent")] {
        let mut job = Job::start("early end", TransportKind::Shm, 3);
        job.all_hear("ready");
        let (_, warning) = job.hears(0, "has finished");
        assert!(warning.contains("monitor rank 1 (host") && warning.contains("rank 2 (host"), "{warning}");
        let since = job.signal(2, signal);
        all_blame(&mut job, 1..2, 2, cause, since);
        // A stuck rank does not keep rank 0 from ending.
        job.hears(0, "finished");
        job.signal(2, Signal::CONT);
        job.ends();
    }
}
