//! One way to run a test on several ranks, over any transport: [`spawn`].
//!
//! The ranks are threads of the test's process, but over `shm` and `tcp` they meet, connect and speak exactly as
//! processes do. For the tests of this library and of everyone who builds on it.

use crate::bootstrap::{Launcher, Meeting, Placement, random};
use crate::error::Result;
use crate::launch::side_by_side;
use crate::transport::TransportKind;
use crate::world::{JoinOptions, World};
use std::time::Duration;

/// Longest that a world may take to come together in a test.
const JOIN: Duration = Duration::from_secs(30);

/// Runs `body` once per rank, each on a thread of its own, and returns what the ranks returned, by rank.
///
/// # Panics
/// If a rank panics (the others are told, and fail rather than hang), or the world cannot be made.
pub fn spawn<R: Send>(transport: TransportKind, ranks: usize, body: impl Fn(World) -> R + Sync) -> Vec<R> {
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
    JoinOptions { transport: TransportKind::Mixed, deadline: JOIN, ..JoinOptions::default() }
}

fn run<R: Send>(
    worlds: Vec<impl FnOnce() -> Result<World> + Send>,
    body: impl Fn(World) -> R + Sync,
) -> Vec<R> {
    side_by_side(worlds, |world| match world() {
        Ok(world) => body(world),
        Err(error) => fail(error),
    })
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
