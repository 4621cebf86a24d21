//! NCCL communicators before they are ready: their names, and how they are connected.

use super::link::TICK;
use super::teardown::{FAREWELL, Teardown};
use super::translation::explained;
use crate::control::health::Health;
use crate::device::Queue;
use crate::device::cuda::CudaQueue;
use crate::error::{Error, ErrorContext, Result};
use crate::runtime;
use crate::waiting::stopwatch::Stopwatch;
use nccl_rs::{Communicator, UniqueId};
use std::mem::ManuallyDrop;
use std::time::Duration;

/// NCCL communicator. Ending it may wait for the device, so it ends on a separate thread. If that thread cannot start, NCCL
/// keeps the communicator as long as the process lives.
pub(super) type NcclComm = ManuallyDrop<Communicator>;

/// Initial value of a name that is not yet known.
pub(super) const UNKNOWN: UniqueId = UniqueId::from_bytes([0; UniqueId::SIZE]);

/// Returns the name of a future communicator.
///
/// # Errors
/// [`Error::Setup`] without NCCL; [`Error::System`] if NCCL has none.
pub(super) fn draw() -> Result<UniqueId> {
    UniqueId::new().map_err(|error| explained("draw a name for an NCCL communicator", &error))
}

/// Begins to connect the GPU of a queue, as this rank in a world of this size, with all ranks that call it with the same name.
/// NCCL continues on its own thread.
///
/// # Errors
/// [`Error::System`] with NCCL's reason if it refuses; [`Error::Usage`] if the queue is no GPU's.
pub(super) fn begin(queue: &Queue, (rank, ranks): (usize, usize), id: UniqueId) -> Result<NcclComm> {
    let Some(gpu) = CudaQueue::of(queue).map(CudaQueue::gpu) else {
        return Err(Error::usage(format!("{} is not a GPU", queue.name()), "use NCCL between GPUs"));
    };
    let _current = gpu.enter()?;
    let begun = Communicator::new(id, rank, ranks);
    begun.map(ManuallyDrop::new).map_err(|error| explained("connect the ranks by NCCL", &error))
}

/// Ends a communicator that was not connected.
fn abort(queue: &Queue, comm: NcclComm) {
    // Its result is no longer needed.
    let abort = move || drop(ManuallyDrop::into_inner(comm).abort());
    Teardown::begin(queue, abort).into_iter().for_each(|ending| ending.wait(FAREWELL));
}

/// Waits until NCCL has connected the ranks, and otherwise ends the communicator.
///
/// # Errors
/// [`Error::Deadline`] if it takes longer than `limit`; failures of NCCL, and of other ranks.
pub(super) fn connected(queue: &Queue, comm: NcclComm, health: &Health, limit: Duration) -> Result<NcclComm> {
    match until_connected(&comm, health, limit) {
        Ok(()) => Ok(comm),
        Err(error) => {
            abort(queue, comm);
            Err(error)
        }
    }
}

fn until_connected(comm: &Communicator, health: &Health, limit: Duration) -> Result<()> {
    let mut waited = Stopwatch::start();
    while !comm.is_ready().map_err(|error| explained("connect the ranks by NCCL", &error))? {
        if let Some(verdict) = health.verdict() {
            return Err(verdict.error(ErrorContext::Registering));
        }
        if waited.elapsed() > limit {
            let stragglers = Vec::new();
            return Err(Error::Deadline {
                waiting_for: None,
                stragglers,
                after: limit,
                context: ErrorContext::Registering,
            });
        }
        runtime::sleep(TICK);
    }
    Ok(())
}
