//! Environment of each rank.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `HEXAGRAM_RANK`, `HEXAGRAM_SIZE` | rank, and number of ranks |
//! | `HEXAGRAM_LOCAL_RANK`, `HEXAGRAM_LOCAL_SIZE` | rank and number of ranks on this machine |
//! | `HEXAGRAM_ADDR` | rendezvous: `127.0.0.1:PORT`, or as given if there are several machines |
//! | `HEXAGRAM_LISTEN_FD` | rank 0 only: descriptors of the sockets that listen there, separated by commas |
//! | `HEXAGRAM_SECRET_FILE` | file with the job's secret |
//! | `HEXAGRAM_ATTENDANCE_FD` | descriptor of the file in which the rank notes that rank 0 has registered it |
//! | `HEXAGRAM_MEMBERSHIP_FD` | in an elastic job: descriptor of the connection to the launcher |
//! | `HEXAGRAM_LAUNCHER` | launchers of the rank, as ranks read them |
//! | `HEXAGRAM_RESTART` | how many times the launcher has restarted the job, if it may |
//! | `RAYON_NUM_THREADS`, `OMP_NUM_THREADS` | this rank's share of the cores, unless it is set already |

use crate::Job;
use crate::rendezvous::RendezvousSetup;
use hexagram_physical::bootstrap::variable;
use hexagram_physical::launcher::{MEMBERSHIP, REGISTERED, of_launchers};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// Removes the rank variables that launchers have set for this process from the environment of a command, so that a
/// different launcher, such as mpirun, can start ranks with it.
pub fn forget_rank(command: &mut Command) {
    of_launchers().for_each(|name| {
        command.env_remove(name);
    });
}

/// Sets the variables of `rank` in `command`. Returns the open files that they name, which the rank must inherit.
///
/// Rank 0 takes the listening sockets out of `setup`, and each process of an elastic job its connection to the launcher.
pub(super) fn describe(
    command: &mut Command,
    rank: usize,
    job: &Job,
    setup: &mut RendezvousSetup,
) -> Vec<Arc<OwnedFd>> {
    forget_rank(command);
    // MKL and OpenBLAS follow the OpenMP variable, unless they have their own.
    for name in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"].into_iter().filter(|name| variable(name).is_none()) {
        command.env(name, threads_per_rank(job.ranks).to_string());
    }
    command.envs(job.environment.iter().map(|(name, value)| (name, value)));

    let local_rank = rank - job.numbers().start;
    command.env("HEXAGRAM_RANK", rank.to_string()).env("HEXAGRAM_SIZE", job.size().to_string());
    command.env("HEXAGRAM_LOCAL_RANK", local_rank.to_string());
    command.env("HEXAGRAM_LOCAL_SIZE", job.ranks.to_string());
    command.env("HEXAGRAM_ADDR", &setup.address);
    command.env("HEXAGRAM_SECRET_FILE", format!("/proc/self/fd/{}", setup.secret.as_raw_fd()));
    command.env(REGISTERED, setup.registered.file().as_raw_fd().to_string());
    command.env_remove("HEXAGRAM_LISTEN_FD");

    let mut inherited = vec![Arc::clone(&setup.secret), Arc::clone(setup.registered.file())];
    let listeners = if rank == 0 { std::mem::take(&mut setup.listeners) } else { Vec::new() };
    if !listeners.is_empty() {
        let numbers: Vec<String> = listeners.iter().map(|file| file.as_raw_fd().to_string()).collect();
        command.env("HEXAGRAM_LISTEN_FD", numbers.join(","));
        inherited.extend(listeners.into_iter().map(Arc::new));
    }
    if let Some(membership) = setup.membership.take() {
        command.env(MEMBERSHIP, membership.as_raw_fd().to_string());
        inherited.push(Arc::new(membership));
    }
    inherited
}

/// Returns the share of cores of each rank, at least one. Without it, libraries start a thread per core in every
/// rank.
fn threads_per_rank(ranks: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (cores / ranks).max(1)
}
