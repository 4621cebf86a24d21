//! One way to run a test on several ranks, over any transport: [`spawn`].
//!
//! The ranks are threads of the test's process, but over `shm` and `tcp` they meet, connect and speak exactly as
//! processes do. For the tests of this library and of everyone who builds on it.

use crate::bootstrap::{Launcher, Meeting, Placement, random};
use crate::error::Result;
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
    let worlds: Vec<Box<dyn FnOnce() -> Result<World> + Send>> = match transport {
        TransportKind::Thread => match World::threads(ranks) {
            Ok(worlds) => worlds.into_iter().map(|world| Box::new(move || Ok(world)) as _).collect(),
            Err(error) => fail(error),
        },
        TransportKind::Shm | TransportKind::Tcp => {
            let meeting = meeting();
            (0..ranks).map(|rank| join(transport, rank, ranks, meeting.clone())).collect()
        }
    };
    let rank = |world: Box<dyn FnOnce() -> Result<World> + Send>| match world() {
        Ok(world) => body(world),
        Err(error) => fail(error),
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || rank(world))).collect();
        // All are joined before the first panic goes on, so that the panic is the test's and not a second one.
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn join(
    transport: TransportKind,
    rank: usize,
    size: usize,
    meeting: Meeting,
) -> Box<dyn FnOnce() -> Result<World> + Send> {
    let (local_rank, local_size, launcher) = (rank, size, Launcher::Hexagram);
    let secret = b"test".to_vec();
    let placement = Placement { rank, size, local_rank, local_size, meeting, secret, launcher };
    Box::new(move || {
        World::join_as(&placement, &JoinOptions { transport, deadline: JOIN, ..JoinOptions::default() })
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
