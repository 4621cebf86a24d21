//! Which bytes go through memory and which over the network, by ranks that are real processes: on several hosts, and on
//! one host where a process can have no shared memory.

pub(super) mod ranks;

use super::job::{Failed, Job, on_this_host, random};
use super::network::Hosts;
use hexagram_logical::{HEADER_BYTES, TransportKind};
use ranks::{BLOCK, CHUNK};
use rustix::process::Signal;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The bytes that a rank reports, through memory and by TCP.
fn sent(job: &mut Job, rank: usize, what: &str) -> (usize, usize) {
    let (_, line) = job.hears(rank, what);
    let mut words = line.split_whitespace().rev().map(|word| word.parse().unwrap());
    let tcp = words.next().unwrap();
    let shm = words.next().unwrap();
    (shm, tcp)
}

/// Bytes of a ring's all-reduce: 2(n − 1) chunks, each in segments of 512 KiB at most.
fn ring(ranks: usize) -> usize {
    2 * (ranks - 1) * (4 * CHUNK + (4 * CHUNK).div_ceil(512 * 1024) * HEADER_BYTES)
}

#[test]
fn two_hosts_of_two_ranks_use_memory_within_and_tcp_across() {
    let Some(hosts) = Hosts::start(2) else {
        eprintln!("skipped: network namespaces need root and the `ip` program");
        return;
    };
    let mut job = Job::of(hosts.ranks(4, 29500), "count", TransportKind::Mixed);
    for rank in 0..4 {
        // Ranks 0 and 1 on one host, 2 and 3 on the other: every second one sends to the other host.
        let (near, far) = if rank % 2 == 0 { (ring(4), 0) } else { (0, ring(4)) };
        assert_eq!(sent(&mut job, rank, "all_reduce"), (near, far), "rank {rank}");
        let message = 4 * BLOCK + HEADER_BYTES;
        assert_eq!(sent(&mut job, rank, "all_to_all"), (message, 2 * message), "rank {rank}");
        job.hears(rank, "finished");
    }
    job.ends();
}

/// The traffic of two hosts with two ranks each over the network, if all name their host the same.
fn mistaken(hosts: &Hosts) -> impl Iterator<Item = Command> {
    hosts.ranks(4, 29_500).map(|mut command| {
        command.env("HEXAGRAM_HOST", "clone");
        command
    })
}

#[test]
fn hosts_that_call_themselves_the_same_are_told_apart() {
    let Some(hosts) = Hosts::start(2) else {
        eprintln!("skipped: network namespaces need root and the `ip` program");
        return;
    };
    let mut job = Job::of(mistaken(&hosts), "count", TransportKind::Mixed);
    let (_, warning) = job.hears(2, "tcp between rank 2, 3 here and rank 0 ");
    assert!(warning.contains("share no memory (Connection refused"), "{warning}");
    for rank in 0..4 {
        job.hears(rank, "hosts [0, 0, 1, 1]");
        let (near, far) = if rank % 2 == 0 { (ring(4), 0) } else { (0, ring(4)) };
        assert_eq!(sent(&mut job, rank, "all_reduce"), (near, far), "rank {rank}");
        job.hears(rank, "finished");
        assert_eq!(job.warnings(rank), usize::from(rank == 2), "rank {rank}");
    }
    job.ends();
}

#[test]
fn shared_memory_alone_names_the_hosts_that_call_themselves_the_same() {
    let Some(hosts) = Hosts::start(2) else { return };
    let mut job = Job::of(mistaken(&hosts), "count", TransportKind::Shm);
    for rank in 0..4 {
        let Failed { text, .. } = job.failure(rank);
        // The rank of the other host that arrives first.
        let names =
            text.contains("rank 0's") && ["rank 2 ", "rank 3 "].iter().any(|name| text.contains(name));
        let tells = text.contains("shared memory does not reach") && text.contains("HEXAGRAM_HOST");
        assert!(names && tells, "rank {rank}: {text}");
    }
    job.ends();
}

#[test]
fn a_rank_of_another_user_is_reached_by_tcp() {
    const NOBODY: u32 = 12_345;
    let Some(mut hosts) = Hosts::start(1) else { return };
    let Some(secret) = hosts.secret_of(NOBODY) else {
        eprintln!("skipped: other users cannot read files in the folder for temporary ones");
        return;
    };
    let commands = hosts.ranks(3, 29_500).enumerate().map(|(rank, mut command)| {
        if rank == 1 {
            command.env(ranks::USER, NOBODY.to_string()).env("HEXAGRAM_SECRET_FILE", &secret);
        }
        command
    });
    let mut job = Job::of(commands, "count", TransportKind::Mixed);
    let (_, warning) = job.hears(1, "tcp between rank 1 here and rank 0 ");
    assert!(warning.contains("share no memory") && warning.contains(&NOBODY.to_string()), "{warning}");
    for rank in 0..3 {
        job.hears(rank, "hosts [0, 1, 0]");
        // The ring goes 0 → 1 → 2 → 0, and only its last link is between ranks that share memory.
        let want = if rank == 2 { (ring(3), 0) } else { (0, ring(3)) };
        assert_eq!(sent(&mut job, rank, "all_reduce"), want, "rank {rank}");
        job.hears(rank, "finished");
    }
    job.ends();
}

#[test]
fn a_rank_that_is_killed_is_named_on_its_own_host_and_on_the_other() {
    for victim in 0..4 {
        let Some(hosts) = Hosts::start(2) else { return };
        let mut job = Job::of(hosts.ranks(4, 29_500), "reduce", TransportKind::Mixed);
        job.all_hear("ready");
        // Some moment of some operation.
        thread::sleep(Duration::from_millis(random(30) as u64));
        let killed = job.signal(victim, Signal::KILL);
        for rank in (0..4).filter(|rank| *rank != victim) {
            let Failed { culprit, at, text } = job.failure(rank);
            assert_eq!(culprit, Some(victim), "rank {rank}: {text}");
            let took = at.saturating_duration_since(killed);
            assert!(took < Duration::from_secs(60), "rank {rank} took {took:?}");
        }
        job.ends();
    }
}

/// Has the system refuse the process any file of more than some bytes, and so shared memory.
fn without_memory(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"ulimit -f 64 && trap "" XFSZ && exec "$@""#, "sh"]).arg(command.get_program());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

#[test]
fn a_process_that_can_have_no_shared_memory_is_reached_by_tcp() {
    let commands = on_this_host(3)
        .enumerate()
        .map(|(rank, command)| if rank == 1 { without_memory(&command) } else { command });
    let mut job = Job::of(commands, "count", TransportKind::Mixed);
    job.hears(1, "tcp instead of shared memory to all ranks of this host: cannot reserve");
    for rank in [0, 2] {
        let (_, warning) = job.hears(rank, "tcp instead of shared memory to rank 1");
        assert!(warning.contains("has no shared memory"), "{warning}");
    }
    // The ring goes 0 → 1 → 2 → 0, and only its last link is between ranks that have memory.
    for (rank, near) in [(0, false), (1, false), (2, true)] {
        let want = if near { (ring(3), 0) } else { (0, ring(3)) };
        assert_eq!(sent(&mut job, rank, "all_reduce"), want, "rank {rank}");
        job.hears(rank, "finished");
    }
    job.ends();
}
