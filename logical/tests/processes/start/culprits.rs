//! Ranks that keep a job from starting: every rank names the same one, with the reason and the remedy.

use super::names::{hosts, meet};
use super::ranks::{ADDRESSES, FILES};
use crate::processes::job::{Failed, Job, on_this_host};
use hexagram_logical::TransportKind;
use std::process::Command;

/// Ranks on this host, adapted one by one.
fn start(transport: TransportKind, size: usize, mut adapt: impl FnMut(usize, &mut Command)) -> Job {
    let commands = on_this_host(size).enumerate().map(|(rank, mut command)| {
        adapt(rank, &mut command);
        command
    });
    Job::of(commands, "add", transport)
}

/// Every rank of `size` names `culprit`, and no other, in an error that contains all of `parts`.
fn all_name(mut job: Job, size: usize, culprit: usize, parts: &[&str]) {
    for rank in 0..size {
        let Failed { culprit: blamed, text, .. } = job.failure(rank);
        assert!(blamed == Some(culprit) || (rank == culprit && blamed.is_none()), "rank {rank}: {text}");
        for part in parts {
            assert!(text.contains(part), "rank {rank} does not say `{part}`: {text}");
        }
    }
    job.ends();
}

#[test]
fn a_rank_that_can_open_too_few_files_is_named_by_every_rank() {
    for transport in [TransportKind::Tcp, TransportKind::Shm, TransportKind::Mixed] {
        for files in [4, 6, 8] {
            let job = start(transport, 6, |rank, command| {
                if rank == 2 {
                    command.env(FILES, files.to_string());
                }
            });
            all_name(job, 6, 2, &["Too many open files", "raise the hard limit"]);
        }
    }
}

#[test]
fn a_rank_that_has_too_few_addresses_for_a_thread_is_named_by_every_rank() {
    for transport in [TransportKind::Tcp, TransportKind::Shm, TransportKind::Mixed] {
        let job = start(transport, 3, |rank, command| {
            if rank == 1 {
                command.env(ADDRESSES, "1");
            }
        });
        all_name(job, 3, 1, &["cannot start a thread", "MiB of addresses (ulimit -v)"]);
    }
}

/// The error of every rank contains all of `parts`.
fn all_say(mut job: Job, size: usize, parts: &[&str]) {
    for rank in 0..size {
        let said = job.failure(rank).text;
        for part in parts {
            assert!(said.contains(part), "rank {rank} does not say `{part}`: {said}");
        }
    }
    job.ends();
}

#[test]
fn a_rank_that_others_cannot_reach_is_named_with_the_variable_that_hides_it() {
    let Some(hosts) = hosts(2) else { return };
    for (lonely, address) in [(0, "10.99.0.1:29500"), (1, "10.99.0.1:29501")] {
        let job = meet(&hosts, 2, address, |rank, command| {
            if rank == lonely {
                command.env("HEXAGRAM_INTERFACE", "lo");
            }
        });
        let lonely = format!("rank {lonely} (host ");
        all_say(job, 2, &[&lonely, "accepts connections at 127.0.0.1:", "HEXAGRAM_INTERFACE"]);
    }
}

#[test]
fn hosts_that_claim_to_be_one_are_told_so_where_memory_would_have_to_reach() {
    let Some(hosts) = hosts(2) else { return };
    let commands = hosts.ranks(2, 29500).map(|mut command| {
        command.env("HEXAGRAM_HOST", "one");
        command
    });
    let job = Job::of(commands, "add", TransportKind::Shm);
    all_say(job, 2, &["rank 1 (host ", "though HEXAGRAM_HOST says", "use the mixed or the tcp transport"]);
}

#[test]
fn a_variable_with_a_value_that_it_cannot_have_ends_its_rank_at_once() {
    for (name, value, transport, remedy) in [
        ("HEXAGRAM_CHECK", "foo", TransportKind::Tcp, "use full or first-use"),
        ("HEXAGRAM_TCP_SOCKETS", "99", TransportKind::Shm, "use 1 to 16"),
        ("HEXAGRAM_SILENCE", "never", TransportKind::Mixed, "1 to 86400 seconds"),
        ("HEXAGRAM_LOG", "loud", TransportKind::Mixed, "use off, error,"),
    ] {
        // Rank 0 of two never comes: the other does not wait for it.
        let mut command = on_this_host(2).nth(1).unwrap();
        command.env(name, value);
        let mut job = Job::of([command].into_iter(), "add", transport);
        let said = job.failure(0).text;
        assert!(said.contains(&format!("{name}={value} ")) && said.contains(remedy), "{said}");
        job.ends();
    }
}
