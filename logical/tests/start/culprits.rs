//! Ranks because of which a job cannot start: every rank names the same one, and says why and what to do.

use super::job::{Failed, Job, on_this_host};
use super::ranks::{ADDRESSES, FILES};
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

/// Every rank of `size` blames `culprit`, which blames nobody else, in words that contain all of `parts`.
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
