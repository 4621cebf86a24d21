//! Operations on the device: the waits of streams for steps, the reductions, and the copies.
//!
//! | step | meaning, once announced to the waiting ranks |
//! |---|---|
//! | entered | the contribution may be read |
//! | combined | this rank's chunk of an all-reduce may be read |
//! | read | this rank no longer reads the contributions of other ranks, which may be overwritten |
//! | done | for its own host only: the stream has waited for all of these steps |

use super::combine;
use super::combine::CombinationOrder;
use super::contribution::Contribution;
use super::memory::{ExportedMemory, Exports, Imports, of_this_process};
use super::sync_pages::SyncPages;
use crate::control::health::Health;
use crate::device::Queue;
use crate::device::cuda::CudaQueue;
use crate::device::cuda::enqueue::PathWork;
use crate::device::cuda::gpu::Gpu;
use crate::error::{Error, ErrorContext, Result};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::chunk;
use crate::transport::{Label, Tally};
use cudarc::driver::sys::{self, CUdeviceptr};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Facts and memory of one rank's endpoint, which work in flight keeps.
pub(super) struct EndpointReach {
    pub(super) rank: usize,
    pub(super) gpu: Arc<Gpu>,
    pub(super) words: Arc<SyncPages>,
    /// Memory of ranks of other processes.
    pub(super) imports: Arc<Imports>,
    pub(super) exports: Arc<Exports>,
    /// True for ranks of this process, by rank.
    pub(super) are_here: Vec<bool>,
    pub(super) health: Arc<Health>,
    /// Longest time that a stream waits for the others.
    pub(super) deadline: Duration,
    /// Steps that are enqueued.
    pub(super) step: AtomicU32,
    /// Number of the last message of each rank for which a stream waits, by rank.
    pub(super) awaited: Vec<AtomicU32>,
    /// Number of messages, from all ranks together, that were taken or whose taking is enqueued.
    pub(super) taken: AtomicU32,
}

/// Words and memory of closed endpoints. Releasing them may wait for the device, so the thread that releases streams must not
/// do it.
static GONE: Mutex<Vec<(Arc<SyncPages>, Arc<Imports>)>> = Mutex::new(Vec::new());

/// Releases the words and memory of closed endpoints.
pub(super) fn clear_away() {
    let gone = std::mem::take(&mut *GONE.lock().unwrap_or_else(PoisonError::into_inner));
    drop(gone);
}

impl Drop for EndpointReach {
    fn drop(&mut self) {
        let mut gone = GONE.lock().unwrap_or_else(PoisonError::into_inner);
        gone.push((Arc::clone(&self.words), Arc::clone(&self.imports)));
    }
}

impl EndpointReach {
    /// Returns the queue behind a handle.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not of this endpoint's GPU.
    pub(super) fn queue<'a>(&self, queue: &'a Queue, label: &Label) -> Result<&'a CudaQueue> {
        let cuda = CudaQueue::of(queue).filter(|cuda| Arc::ptr_eq(cuda.gpu(), &self.gpu));
        cuda.ok_or_else(|| {
            let what = format!(
                "{} was given memory of a different device than {}",
                label.fingerprint, self.gpu.name
            );
            Error::usage(what, "pass buffers of the device that was attached")
        })
    }

    /// Returns the address at which the device finds the contribution of a rank, and records the memory to keep alive for it.
    pub(super) fn find(
        &self,
        rank: usize,
        notice: &Contribution,
        bytes: usize,
        held: &mut Vec<Arc<ExportedMemory>>,
    ) -> Result<CUdeviceptr> {
        if bytes == 0 {
            return Ok(0);
        }
        if self.are_here[rank] {
            held.push(of_this_process(rank, notice)?);
            return Ok(notice.address);
        }
        // The driver refuses the memory of a process that has been killed, which is not this rank's failure.
        let found = self.imports.find(&self.gpu, rank, notice, bytes);
        found.map_err(|error| self.health.explain(error, ErrorContext::Registering))
    }
}

/// An operation whose contributions lie at known addresses.
pub(super) struct CollectiveTransfer {
    pub(super) reach: Arc<EndpointReach>,
    pub(super) fingerprint: Fingerprint,
    /// Contributions by rank.
    pub(super) sources: Vec<CUdeviceptr>,
    /// Address of the result, and its elements.
    pub(super) to: CUdeviceptr,
    pub(super) len: usize,
    pub(super) tally: Arc<Tally>,
}

impl CollectiveTransfer {
    /// Returns the number of steps that streams announce to each other.
    pub(super) fn announced_steps(&self) -> usize {
        if self.fingerprint.operation == OperationKind::AllReduce { 3 } else { 2 }
    }

    /// Enqueues the work of a step, for which all others have taken the step before.
    pub(super) fn work(&self, work: &mut PathWork<'_>, step: usize) -> Result<()> {
        let CollectiveTransfer { reach, len, .. } = self;
        match (self.fingerprint.operation, step) {
            (OperationKind::AllReduce, 1) => self.combine_own(work),
            (OperationKind::AllReduce, 2) => self.fetch_others(work),
            (OperationKind::ReduceScatter, 1) => {
                self.combine(work, reach.rank * len..(reach.rank + 1) * len, self.to)
            }
            (OperationKind::AllGather, 1) => self.all_gather(work),
            (_, 1) => self.broadcast(work),
            _ => Ok(()),
        }
    }

    /// Combines the own chunk of an all-reduce where the contribution is.
    fn combine_own(&self, work: &mut PathWork<'_>) -> Result<()> {
        let own = self.reach.rank;
        let part = chunk(self.len, self.sources.len(), own);
        let place = self.sources[own] + self.bytes(part.start) as CUdeviceptr;
        self.combine(work, part, place)
    }

    /// Copies the chunks that others have combined.
    fn fetch_others(&self, work: &PathWork<'_>) -> Result<()> {
        let ranks = self.sources.len();
        // Begins with the next rank, so that not all ranks read from the same one.
        (1..=ranks).map(|distance| (self.reach.rank + distance) % ranks).try_for_each(|rank| {
            let part = chunk(self.len, ranks, rank);
            self.fetch(work, rank, self.bytes(part.start)..self.bytes(part.end), self.bytes(part.start))
        })
    }

    /// Combines these elements of all contributions.
    fn combine(&self, work: &mut PathWork<'_>, elements: Range<usize>, to: CUdeviceptr) -> Result<()> {
        if elements.is_empty() {
            return Ok(());
        }
        let offset = self.bytes(elements.start) as CUdeviceptr;
        let from: Vec<_> = self.sources.iter().map(|source| source + offset).collect();
        self.tally.read((from.len() - 1) * self.bytes(elements.len()));
        let order = CombinationOrder::of(&self.fingerprint, from.len(), self.reach.rank);
        let (program, operands) = combine::program(&self.fingerprint, &order, &from, to, elements.len());
        work.launch(&program, &operands)
    }

    fn all_gather(&self, work: &PathWork<'_>) -> Result<()> {
        let ranks = self.sources.len();
        let block = self.bytes(self.len / ranks);
        let ranks = (1..=ranks).map(|distance| (self.reach.rank + distance) % ranks);
        ranks.into_iter().try_for_each(|rank| self.fetch(work, rank, 0..block, rank * block))
    }

    fn broadcast(&self, work: &PathWork<'_>) -> Result<()> {
        let root = self.fingerprint.root.map_or(0, |root| root as usize);
        if root == self.reach.rank {
            return Ok(());
        }
        self.fetch(work, root, 0..self.bytes(self.len), 0)
    }

    /// Copies bytes of a rank's contribution to the result, from byte `at` on.
    fn fetch(&self, work: &PathWork<'_>, rank: usize, bytes: Range<usize>, at: usize) -> Result<()> {
        let from = self.sources[rank] + bytes.start as CUdeviceptr;
        if rank != self.reach.rank {
            self.tally.read(bytes.len());
        }
        copy(work, from, self.to + at as CUdeviceptr, bytes.len())
    }

    fn bytes(&self, elements: usize) -> usize {
        elements * self.fingerprint.dtype.size()
    }
}

/// Copies between two places that the device reaches.
pub(super) fn copy(work: &PathWork<'_>, from: CUdeviceptr, to: CUdeviceptr, bytes: usize) -> Result<()> {
    if bytes == 0 || from == to {
        return Ok(());
    }
    // SAFETY: the stream is valid, and its work keeps both memories of this size alive: peers do not write before this rank has
    // announced its read.
    let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, work.stream().0) };
    work.expect(status, &format!("copy {bytes} bytes between ranks"))
}
