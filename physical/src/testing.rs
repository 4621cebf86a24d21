//! One way to run a test on several ranks, over any transport: [`spawn`].
//!
//! The ranks are threads of the test's process, but over `shm` and `tcp` they meet, connect and speak exactly as
//! processes do. For the tests of this library and of everyone who builds on it.

use crate::bootstrap::{Launcher, Meeting, Placement, random, variable};
use crate::error::Result;
use crate::health::Vigilance;
use crate::launch::side_by_side;
use crate::transport::TransportKind;
use crate::world::{JoinOptions, World};
use std::time::Duration;

/// Longest that a world may take to come together in a test.
const JOIN: Duration = Duration::from_secs(30);

/// What a matrix of tests runs on: every transport whose ranks can be threads, with each number of `ranks`.
///
/// In processes that `mpirun` started with `HEXAGRAM_TEST=mpi`, only the world that they are, if its size is among
/// `ranks`: so the same tests run over MPI, one at a time (`--test-threads=1`).
pub fn cases(ranks: &[usize]) -> Vec<(TransportKind, usize)> {
    #[cfg(feature = "mpi")]
    if variable("HEXAGRAM_TEST").is_some_and(|what| what == "mpi") {
        let size = variable("OMPI_COMM_WORLD_SIZE").and_then(|size| size.parse().ok());
        let Some(size) = size else { fail("HEXAGRAM_TEST=mpi is for processes that mpirun started") };
        return if ranks.contains(&size) { vec![(TransportKind::Mpi, size)] } else { Vec::new() };
    }
    let with = |transport| ranks.iter().map(move |ranks| (transport, *ranks));
    TransportKind::ALL.into_iter().flat_map(with).collect()
}

/// What tests run on whose ranks also meet behind the transport's back, at a barrier of the process: every transport whose
/// ranks can be threads; none in processes that `mpirun` started with `HEXAGRAM_TEST=mpi`.
pub fn on_threads() -> impl Iterator<Item = TransportKind> {
    let mpi = variable("HEXAGRAM_TEST").is_some_and(|what| what == "mpi");
    TransportKind::ALL.into_iter().filter(move |_| !mpi)
}

/// Runs `body` once per rank, each on a thread of its own, and returns what the ranks returned, by rank.
///
/// Over MPI the ranks are processes that `mpirun` has started: `body` runs once in each, which gets its own result only.
///
/// # Panics
/// If a rank panics (the others are told, and fail rather than hang), or the world cannot be made.
pub fn spawn<R: Send>(transport: TransportKind, ranks: usize, body: impl Fn(World) -> R + Sync) -> Vec<R> {
    #[cfg(feature = "mpi")]
    if transport == TransportKind::Mpi {
        let options = JoinOptions { transport, ..options() };
        return run(vec![move || World::join(&options)], body);
    }
    if transport != TransportKind::Thread {
        let options = JoinOptions { transport, ..options() };
        return spawn_as(&vec![options; ranks], body);
    }
    match World::threads(ranks) {
        Ok(worlds) => run(worlds.into_iter().map(|world| move || Ok(world)).collect(), body),
        Err(error) => fail(error),
    }
}

/// Like [`spawn`] with the mixed transport, rank r pretending to run on host `hosts[r]`.
///
/// # Panics
/// As [`spawn`].
pub fn spawn_hosts<R: Send>(hosts: &[usize], body: impl Fn(World) -> R + Sync) -> Vec<R> {
    let on = |host: &usize| JoinOptions { host: Some(format!("host {host} of a test")), ..options() };
    spawn_as(&hosts.iter().map(on).collect::<Vec<_>>(), body)
}

/// Like [`spawn`], rank r joining with its own options.
///
/// # Panics
/// As [`spawn`].
pub fn spawn_as<R: Send>(options: &[JoinOptions], body: impl Fn(World) -> R + Sync) -> Vec<R> {
    let (size, meeting) = (options.len(), meeting());
    let join = |(rank, options): (usize, &JoinOptions)| {
        let (meeting, options) = (meeting.clone(), options.clone());
        let (local_rank, local_size, launcher) = (rank, size, Launcher::Hexagram);
        let secret = b"test".to_vec();
        let placement = Placement { rank, size, local_rank, local_size, meeting, secret, launcher };
        move || World::join_as(&placement, &options)
    };
    run(options.iter().enumerate().map(join).collect(), body)
}

fn options() -> JoinOptions {
    // A machine that is busy with other tests must not look dead.
    let vigilance = Some(Vigilance { silence: JOIN, ..Vigilance::default() });
    JoinOptions { transport: TransportKind::Mixed, deadline: JOIN, vigilance, ..JoinOptions::default() }
}

fn run<R: Send>(
    worlds: Vec<impl FnOnce() -> Result<World> + Send>,
    body: impl Fn(World) -> R + Sync,
) -> Vec<R> {
    let ranks = side_by_side(worlds, |world| match world() {
        Ok(world) => body(world),
        Err(error) => fail(error),
    });
    ranks.unwrap_or_else(|error| fail(error))
}

/// A meeting place that no other test has.
pub(crate) fn meeting() -> Meeting {
    match random::<16>() {
        Ok(bytes) => Meeting::Local(format!("hexagram-test-{:032x}", u128::from_le_bytes(bytes))),
        Err(error) => fail(error),
    }
}

#[allow(clippy::panic, reason = "a test that cannot start has failed")]
fn fail(error: impl std::fmt::Display) -> ! {
    panic!("{error}")
}
