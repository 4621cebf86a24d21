//! NCCL communicators before they are ready: their names, and how they are connected.

use super::ending::{Ending, FAREWELL};
use super::library::{Comm, Config, Libnccl, UniqueId};
use super::link::TICK;
use crate::device::Queue;
use crate::device::cuda::CudaQueue;
use crate::error::{During, Error, Result};
use crate::health::Health;
use crate::runtime;
use crate::stopwatch::Stopwatch;
use std::ffi::c_int;
use std::time::Duration;

/// Returns the name of a communicator that is to be.
///
/// # Errors
/// [`Error::System`] if NCCL has none.
pub(super) fn draw(nccl: &Libnccl) -> Result<UniqueId> {
    let mut id = UniqueId::UNKNOWN;
    // SAFETY: the place is there for one name.
    let status = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
    nccl.expect(status, Comm::NONE, "draw a name for a communicator of NCCL's")?;
    Ok(id)
}

/// Begins to connect the GPU of a queue, as this rank of so many, with all that call it with the same name. NCCL goes on
/// with that on a thread of its own.
///
/// # Errors
/// [`Error::System`] with NCCL's reason if it refuses; [`Error::Usage`] if the queue is no GPU's.
pub(super) fn begin(
    nccl: &'static Libnccl,
    queue: &Queue,
    (rank, ranks): (usize, usize),
    id: UniqueId,
) -> Result<Comm> {
    let mut comm = Comm::NONE;
    let mut config = Config::without_blocking();
    let Some(gpu) = CudaQueue::of(queue).map(CudaQueue::gpu) else {
        return Err(Error::usage(format!("{} is not a GPU", queue.name()), "use NCCL between GPUs"));
    };
    let _current = gpu.enter()?;
    // SAFETY: the place is there for one communicator, and the settings outlive the call.
    let status =
        unsafe { (nccl.ncclCommInitRankConfig)(&mut comm, ranks as c_int, id, rank as c_int, &mut config) };
    let begun = nccl.expect(status, comm, "connect the ranks by NCCL");
    begun.inspect_err(|_| abort(nccl, queue, comm)).map(|()| comm)
}

/// Ends a communicator that was not connected, if there is one.
pub(super) fn abort(nccl: &'static Libnccl, queue: &Queue, comm: Comm) {
    if comm == Comm::NONE {
        return;
    }
    // What it says does not matter any more.
    // SAFETY: the communicator is there, and nobody has it from now on.
    let abort = move || _ = unsafe { (nccl.ncclCommAbort)(comm) };
    // Without a thread for it, NCCL keeps it as long as the process lives.
    Ending::begin(queue, abort).into_iter().for_each(|ending| ending.wait(FAREWELL));
}

/// Waits until NCCL has connected the ranks.
///
/// # Errors
/// [`Error::Deadline`] if it takes longer than `limit`; failures of NCCL, and of other ranks.
pub(super) fn until_connected(nccl: &Libnccl, comm: Comm, health: &Health, limit: Duration) -> Result<()> {
    let mut waited = Stopwatch::start();
    while !nccl.is_ready(comm, "connect the ranks by NCCL")? {
        if let Some(verdict) = health.verdict() {
            return Err(verdict.error(During::Registering));
        }
        if waited.elapsed() > limit {
            let stragglers = Vec::new();
            return Err(Error::Deadline {
                waiting_for: None,
                stragglers,
                after: limit,
                during: During::Registering,
            });
        }
        runtime::sleep(TICK);
    }
    Ok(())
}
