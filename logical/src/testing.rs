//! One way to test a primitive or an algorithm on several ranks: [`spawn`].

mod reference;

pub use reference::Reference;

use crate::{Communicator, Result, TransportKind, World};
use hexagram_physical::testing;
pub use hexagram_physical::testing::late::Late;
pub use hexagram_physical::testing::{
    buffer, cases, free_port, on_threads, queue, skipped_under_mpi, zeroed,
};

/// Runs `body` once per rank, each on a thread of its own with a communicator of all ranks, and returns what the ranks
/// returned, by rank, or the first error.
///
/// # Errors
/// The error of the lowest rank that failed.
///
/// # Panics
/// If a rank panics, or the world cannot be made.
///
/// ```
/// use hexagram_logical::TransportKind;
/// use hexagram_logical::testing::spawn;
///
/// let ranks = spawn(TransportKind::Shm, 3, |comm| Ok(comm.rank()));
/// assert_eq!(ranks.unwrap(), [0, 1, 2]);
/// ```
pub fn spawn<R: Send>(
    transport: TransportKind,
    ranks: usize,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    testing::spawn(transport, ranks, on_channel(&body)).into_iter().collect()
}

/// Runs ranks as [`spawn`] does, with the mixed transport, rank r pretending to run on host `hosts[r]`.
///
/// # Errors
/// As [`spawn`].
///
/// # Panics
/// As [`spawn`].
pub fn spawn_hosts<R: Send>(
    hosts: &[usize],
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    testing::spawn_hosts(hosts, on_channel(&body)).into_iter().collect()
}

fn on_channel<R>(body: &impl Fn(Communicator) -> Result<R>) -> impl Fn(World) -> Result<R> {
    move |world| {
        let comm = Communicator::open(&world, 0)?;
        if !testing::queue().is_host() {
            comm.test_on(testing::queue);
        }
        body(comm)
    }
}
