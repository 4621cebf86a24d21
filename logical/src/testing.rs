//! One way to test a primitive or an algorithm on several ranks: [`spawn`].

use crate::{Communicator, Result, TransportKind};
use hexagram_physical::testing;
pub use hexagram_physical::testing::cases;

/// Runs `body` once per rank, each on a thread of its own with a communicator of all ranks, and returns what the ranks
/// returned, by rank, or the first error.
///
/// # Errors
/// The error of the lowest rank that failed.
///
/// # Panics
/// If a rank panics, or the world cannot be made.
pub fn spawn<R: Send>(
    transport: TransportKind,
    ranks: usize,
    body: impl Fn(Communicator) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let rank = |world: crate::World| body(Communicator::open(&world, 0)?);
    testing::spawn(transport, ranks, rank).into_iter().collect()
}
