//! The ranks of a program: one that a launcher has started, or all of them as threads.

use crate::error::{Error, Result};
use crate::world::World;
use std::fmt::Display;
use std::io;
use std::panic;

/// Maximum number of ranks of one job on one machine: far above any number of cores, and far below the number of
/// process ids.
pub const MAX_RANKS: usize = 1024;

/// Runs one rank. If it fails, the other ranks learn the reason before it leaves.
///
/// # Errors
/// Those of `rank`.
///
/// ```no_run
/// use hexagram_physical::{JoinOptions, World, ranks::as_rank};
///
/// fn main() -> hexagram_physical::Result<()> {
///     // Started by `hexagram run -n 4 -- PROGRAM`, or another launcher.
///     let world = World::join(&JoinOptions::default())?;
///     as_rank(world, |world| {
///         println!("rank {} of {}", world.rank(), world.size());
///         Ok(())
///     })
/// }
/// ```
pub fn as_rank<R, E: Display>(world: World, rank: impl FnOnce(World) -> Result<R, E>) -> Result<R, E> {
    let health = world.health().clone();
    // Held until the reason is reported: the last clone announces the departure when it is dropped.
    let _held = world.clone();
    rank(world).inspect_err(|error| health.fail_self(&format!("failed: {error}")))
}

/// Runs `rank` like [`as_rank`] in each generation of an elastic job: again, in the next world, if it has failed because the
/// members changed. The error of a generation is logged. In a job whose members stay, `rank` runs once.
///
/// # Errors
/// Those of `rank`, and of [`World::next`].
///
/// ```no_run
/// use hexagram_physical::{JoinOptions, Result, World, ranks::as_member};
///
/// fn main() -> Result<()> {
///     // Started by `hexagram run -n 4 --elastic 2 -- PROGRAM`.
///     let world = World::join(&JoinOptions::default())?;
///     as_member(world, |world| {
///         println!("rank {} of {}", world.rank(), world.size());
///         Ok(())
///     })
/// }
/// ```
pub fn as_member<R, E: Display + From<Error>>(
    mut world: World,
    mut rank: impl FnMut(&World) -> Result<R, E>,
) -> Result<R, E> {
    loop {
        match rank(&world) {
            Err(error) if world.changed() => {
                tracing::info!("{error}");
                world = world.next()?;
            }
            ended => return ended.inspect_err(|error| world.health().fail_self(&format!("failed: {error}"))),
        }
    }
}

/// Runs `rank` on `ranks` threads of this process, each a rank of one world. Returns the results by rank.
///
/// # Errors
/// As [`World::threads`]; [`Error::System`] if the system gives no more threads.
///
/// # Panics
/// If a rank panics. The other ranks are notified first.
///
/// ```
/// use hexagram_physical::ranks::{as_rank, as_threads};
/// use hexagram_physical::{Result, World};
///
/// fn main() -> Result<()> {
///     let train = |world: World| -> Result<usize> { Ok(world.rank()) };
///     let ranks = as_threads(3, |world| as_rank(world, train))?;
///     assert_eq!(ranks.into_iter().collect::<Result<Vec<_>>>()?, [0, 1, 2]);
///     Ok(())
/// }
/// ```
pub fn as_threads<R: Send>(ranks: usize, rank: impl Fn(World) -> R + Sync) -> Result<Vec<R>> {
    side_by_side(World::threads(ranks)?, rank)
}

/// Runs `body` on each of `things` at the same time, each on its own thread. Returns the results in order.
///
/// # Errors
/// [`Error::System`] if there are too few threads. The things without a thread are dropped.
pub(crate) fn side_by_side<T: Send, R: Send>(things: Vec<T>, body: impl Fn(T) -> R + Sync) -> Result<Vec<R>> {
    let body = &body;
    let mut results: Vec<Option<R>> = things.iter().map(|_| None).collect();
    let each = things.into_iter().zip(&mut results);
    run_all(
        each.map(|(thing, result)| -> ThreadJob<'_> { Box::new(move || *result = Some(body(thing))) })
            .collect(),
    )?;
    Ok(results.into_iter().flatten().collect())
}

/// Work of one thread. It is boxed so that threads are compiled once, and not for each type of a result.
type ThreadJob<'a> = Box<dyn FnOnce() + Send + 'a>;

#[allow(clippy::disallowed_methods, reason = "real ranks are threads of the system")]
fn run_all(jobs: Vec<ThreadJob<'_>>) -> Result<()> {
    std::thread::scope(|scope| {
        let start = |job| std::thread::Builder::new().spawn_scoped(scope, job);
        let running: io::Result<Vec<_>> = jobs.into_iter().map(start).collect();
        let running = running.map_err(Error::no_thread)?;
        // All are joined before the first panic continues, so that a second one does not hide it.
        let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
        ended.into_iter().for_each(|end| end.unwrap_or_else(|panicked| panic::resume_unwind(panicked)));
        Ok(())
    })
}
