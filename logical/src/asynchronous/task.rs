//! Tasks that communicate beside the thread that computes, each with a communicator of its own.

use super::pending::{Ending, Pending};
use crate::runtime::{self, Thread};
use crate::{Communicator, Error, Result};
use hexagram_physical::drive;
use hexagram_physical::transport::Bell;
use std::sync::Arc;

/// Starts a task that runs `work` with another communicator of the same ranks, on a thread of its own or wherever the
/// [`runtime`] wants it. Returns it with the bell that ends its sleep. A collective call: all ranks make
/// it, in the same order as others like it.
///
/// # Errors
/// As [`Communicator::channel`] and [`Channel::open`](crate::Channel::open); [`Error::System`] if there can be no thread.
pub(super) async fn start(
    comm: &Communicator,
    name: &str,
    work: impl AsyncFnOnce(Communicator) + Send + 'static,
) -> Result<(Thread, Arc<dyn Bell>)> {
    let channel = comm.channel().await?;
    let activity = Arc::clone(comm.activity());
    let died = || Error::usage("a task ended as it began", "see its panic message");
    let (opened, opening) = Pending::new(&Arc::new(Ending::new(died)));
    let task = move || async move {
        let comm = match channel.open_beside(activity) {
            Err(error) => return opened.complete(Err(error)),
            Ok(comm) => comm,
        };
        opened.complete(Ok(comm.bell()));
        drive::beside_computation();
        let endpoint = comm.clone();
        drive::run(endpoint.endpoint(), work(comm)).await;
    };
    // The others wait for this rank's end of the channel.
    let thread = runtime::spawn_task(name, task).inspect_err(|error| comm.give_up(error))?;
    Ok((thread, opening.await?))
}
