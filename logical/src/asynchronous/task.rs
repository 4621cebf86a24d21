//! Tasks that communicate alongside the computing thread, each with its own communicator.

use super::pending::{DeliveryEnd, Pending};
use crate::runtime::{self, Thread};
use crate::{Communicator, Error, Result};
use hexagram_physical::drive;
use hexagram_physical::transport::Bell;
use std::sync::Arc;

/// Starts a task that runs `work` with another communicator of the same ranks, on a separate thread or as the
/// [`runtime`] decides. Returns the task with the bell that ends its sleep. A collective call, in the same order as
/// other such calls on all ranks.
///
/// # Errors
/// As [`Communicator::channel`] and [`Channel::open`](crate::Channel::open); [`Error::System`] without a thread.
pub(super) async fn start(
    comm: &Communicator,
    name: &str,
    work: impl AsyncFnOnce(Communicator) + Send + 'static,
) -> Result<(Thread, Arc<dyn Bell>)> {
    let channel = comm.channel().await?;
    let activity = Arc::clone(comm.activity());
    let died = || Error::usage("a task ended at its start", "see its panic message");
    let (opened, opening) = Pending::new(&Arc::new(DeliveryEnd::new(died)));
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
    // The other ranks wait for the end of this rank of the channel.
    let thread = runtime::spawn_task(name, task).inspect_err(|error| comm.give_up(error))?;
    Ok((thread, opening.await?))
}
