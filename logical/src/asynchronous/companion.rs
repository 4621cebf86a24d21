//! Threads that communicate beside the one that computes, each with a communicator of its own.

use super::agree::check_ranks;
use crate::runtime::{self, Thread};
use crate::{Communicator, Error, Result};
use hexagram_physical::drive;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Starts a thread that runs `work` with a communicator of all ranks of `comm`'s world. A collective call: all ranks make
/// it, in the same order as others like it.
///
/// # Errors
/// [`Error::Usage`] if `comm` is not of all ranks of the world, in their order: the others would be waited for. As
/// [`Communicator::open`]; [`Error::System`] if there can be no thread.
pub(super) fn start(
    comm: &Communicator,
    name: &str,
    work: impl FnOnce(Communicator) + Send + 'static,
) -> Result<Thread> {
    let world = comm.world().clone();
    check_ranks(comm, world.size())?;
    let number = world.fresh_channel()?;
    let activity = Arc::clone(comm.activity());
    let (opened, opening) = channel();
    let run = move || match Communicator::open_beside(&world, number, activity) {
        Err(error) => drop(opened.send(Err(error))),
        Ok(comm) => {
            // Whoever asked has either this answer or none to wait for.
            let _ = opened.send(Ok(()));
            drop(world);
            drive::beside_computation();
            work(comm);
        }
    };
    let thread = runtime::spawn(name, run).inspect_err(|error| {
        // The others wait for this rank's end of the channel.
        comm.give_up(error);
    })?;
    let died = |_| Error::usage(format!("thread {name} ended as it began"), "see its panic message");
    runtime::receive(&opening).map_err(died)??;
    Ok(thread)
}
