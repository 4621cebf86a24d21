//! Ranks as threads of a world in virtual time. They take turns on one processor, so that every run gives the same
//! result.

use hexagram::logical::testing::all_or_cause;
use hexagram::physical::runtime::{self, VirtualTime};
use hexagram::{Communicator, Error, Result, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Runs `rank` on each of this many ranks in virtual time; returns the results by rank.
///
/// # Errors
/// The root cause among the errors of the ranks.
pub(crate) fn in_virtual_time<R: Send + 'static>(
    ranks: usize,
    rank: impl Fn(&Communicator) -> Result<R> + Send + Sync + 'static,
) -> Result<Vec<R>> {
    VirtualTime::run(|| side_by_side(ranks, Arc::new(rank)))
}

fn side_by_side<R: Send + 'static>(
    ranks: usize,
    rank: Arc<impl Fn(&Communicator) -> Result<R> + Send + Sync + 'static>,
) -> Result<Vec<R>> {
    let (results, result) = channel();
    for world in World::threads(ranks)? {
        let results = results.clone();
        let rank = Arc::clone(&rank);
        let work = move || {
            let number = world.rank();
            let outcome = guarded(&world, &*rank);
            // Fails only if the receiver was dropped.
            let _ = results.send((number, outcome));
        };
        runtime::spawn("hexagram-rank", work)?;
    }
    drop(results);
    let mut found: Vec<(usize, Result<R>)> = Vec::new();
    while let Ok(outcome) = runtime::receive(&result) {
        found.push(outcome);
    }
    found.sort_by_key(|(number, _)| *number);
    all_or_cause(found.into_iter().map(|(_, outcome)| outcome))
}

/// Runs a rank and turns its panic into an error, since its task may be a user's.
pub(crate) fn guarded<R>(world: &World, rank: &impl Fn(&Communicator) -> Result<R>) -> Result<R> {
    let body =
        || Communicator::open(world, 0).and_then(|comm| rank(&comm).inspect_err(|error| comm.give_up(error)));
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let error = Error::panicked("the training", &*panic);
        world.health().fail_self(&format!("failed: {error}"));
        Err(error)
    })
}
