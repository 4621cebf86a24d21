//! The roles of a job's ranks, each in a separate process.

use crate::processes::job::TRANSPORT;
use hexagram_logical::{Communicator, Error, JoinOptions, ReduceOp, Result, World};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::env;
use std::fs;
use std::time::Duration;

/// How many files more than it has already this rank may open.
pub(crate) const FILES: &str = "HEXAGRAM_TEST_FILES";
/// How many MiB of addresses more than it has already this rank may use.
pub(crate) const ADDRESSES: &str = "HEXAGRAM_TEST_ADDRESSES";

/// Longest time for this rank to join, in seconds.
pub(crate) const JOIN: &str = "HEXAGRAM_TEST_JOIN";

/// Joins and adds within the limits that the test has set.
pub(crate) fn play() {
    limit(FILES, Resource::Nofile, || fs::read_dir("/proc/self/fd").unwrap().count() as u64 - 1, 1);
    limit(ADDRESSES, Resource::As, addresses, 1 << 20);
    match add() {
        Ok(()) => eprintln!("finished"),
        Err(error @ Error::PeerFailed { .. }) => {
            let Error::PeerFailed { culprit, .. } = &error else { return };
            eprintln!("failed: {} {error}", culprit.rank);
        }
        Err(error) => eprintln!("failed: nobody {error}"),
    }
}

/// Limits this process to its usage (`has`) plus the variable's value, in some unit.
fn limit(variable: &str, resource: Resource, has: impl Fn() -> u64, unit: u64) {
    let Ok(more) = env::var(variable) else { return };
    let limit = Some(has() + more.parse::<u64>().unwrap() * unit);
    setrlimit(resource, Rlimit { current: limit, maximum: limit }).unwrap();
}

/// Bytes of addresses that this process uses.
fn addresses() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Joins, and adds one number of each rank.
fn add() -> Result<()> {
    let transport = env::var(TRANSPORT).unwrap().parse()?;
    let mut options = JoinOptions { transport, ..JoinOptions::default() };
    if let Ok(seconds) = env::var(JOIN) {
        options.deadline = Duration::from_secs(seconds.parse().unwrap());
    }
    let world = World::join(&options)?;
    let comm = Communicator::open(&world, 0)?;
    let mut number = [1f32];
    comm.blocking().all_reduce(&mut number, ReduceOp::Sum)?;
    assert_eq!(number, [comm.size() as f32]);
    Ok(())
}
