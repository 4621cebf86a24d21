//! Tasks that communicate beside the thread that computes, each with a communicator of its own.

use super::pending::{Ending, Pending};
use crate::runtime::{self, Thread};
use crate::{Communicator, Error, Result};
use hexagram_physical::drive;
use hexagram_physical::transport::Bell;
use std::sync::Arc;

/// Starts a task that runs `work` with a communicator of all ranks of `comm`'s world, on a thread of its own or
/// wherever the [`runtime`] wants it. Returns it with the bell that ends its sleep. A collective call: all ranks make
/// it, in the same order as others like it.
///
/// # Errors
/// [`Error::Usage`] if `comm` is not of all ranks of the world, in their order: the others would be waited for. As
/// [`Communicator::open`]; [`Error::System`] if there can be no thread.
pub(super) async fn start(
    comm: &Communicator,
    name: &str,
    work: impl AsyncFnOnce(Communicator) + Send + 'static,
) -> Result<(Thread, Arc<dyn Bell>)> {
    let world = comm.world().clone();
    check_ranks(comm, world.size())?;
    let number = world.fresh_channel()?;
    let activity = Arc::clone(comm.activity());
    let died = || Error::usage("a task ended as it began", "see its panic message");
    let (opened, opening) = Pending::new(&Arc::new(Ending::new(died)));
    let task = move || async move {
        let comm = match Communicator::open_beside(&world, number, activity) {
            Err(error) => return opened.complete(Err(error)),
            Ok(comm) => comm,
        };
        opened.complete(Ok(comm.bell()));
        drop(world);
        drive::beside_computation();
        let endpoint = comm.clone();
        drive::run(endpoint.endpoint(), work(comm)).await;
    };
    // The others wait for this rank's end of the channel.
    let thread = runtime::spawn_task(name, task).inspect_err(|error| comm.give_up(error))?;
    Ok((thread, opening.await?))
}

/// Fails unless a communicator is of all ranks of a world of `size`, in their order.
pub(super) fn check_ranks(comm: &Communicator, size: usize) -> Result<()> {
    let ranks = comm.world_ranks();
    if ranks.iter().copied().eq(0..size) {
        return Ok(());
    }
    let what = format!("the communicator is of the ranks {ranks:?} of a world of {size}");
    Err(Error::usage(what, "use one of all ranks, in their order"))
}
