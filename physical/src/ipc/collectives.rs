//! Operations on the device: which streams wait for which step, what is combined, and what is copied.
//!
//! | step | when it is told, all others wait for it |
//! |---|---|
//! | entered | the contribution may be read |
//! | combined | the own chunk of an all-reduce may be read |
//! | read | nobody needs the contributions of others any more, so that they may be written |
//! | done | for the own host only: the stream has waited for all of that |

use super::combine::{self, CombinationOrder};
use super::memory::{Bucket, Exported, Exports, Imports, of_this_process, registered};
use super::notice::Notice;
use super::watch::{Awaited, Flight};
use super::words::Words;
use crate::device::Queue;
use crate::device::cuda::CudaQueue;
use crate::device::cuda::enqueue::{self, PathWork, address};
use crate::device::cuda::gpu::Gpu;
use crate::device::cuda::types::CUdeviceptr;
use crate::error::{During, Error, Result};
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::health::Health;
use crate::memory::{ReadView, Span, WriteView};
use crate::native::chunk;
use crate::transport::{Label, Tally};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Facts and memory of one rank's endpoint, which work in flight keeps.
pub(super) struct Reach {
    pub(super) rank: usize,
    pub(super) gpu: Arc<Gpu>,
    pub(super) words: Arc<Words>,
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
    /// Messages of all ranks whose taking is enqueued.
    pub(super) taken: AtomicU32,
}

/// Words and memory of endpoints that are gone: to let go of them may wait for the device, which is not for the thread that lets
/// streams go on.
static GONE: Mutex<Vec<(Arc<Words>, Arc<Imports>)>> = Mutex::new(Vec::new());

/// Lets go of what endpoints had that are gone.
pub(super) fn clear_away() {
    let gone = std::mem::take(&mut *GONE.lock().unwrap_or_else(PoisonError::into_inner));
    drop(gone);
}

impl Drop for Reach {
    fn drop(&mut self) {
        let mut gone = GONE.lock().unwrap_or_else(PoisonError::into_inner);
        gone.push((Arc::clone(&self.words), Arc::clone(&self.imports)));
    }
}

impl Reach {
    /// Returns the queue behind a handle.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not of this endpoint's GPU.
    pub(super) fn queue<'a>(&self, queue: &'a Queue, label: &Label) -> Result<&'a CudaQueue> {
        let cuda = CudaQueue::of(queue).filter(|cuda| Arc::ptr_eq(cuda.gpu(), &self.gpu));
        cuda.ok_or_else(|| {
            let what =
                format!("{} was given memory of another device than {}", label.fingerprint, self.gpu.name);
            Error::usage(what, "pass buffers of the device that was attached")
        })
    }

    /// Returns the address at which the device finds the contribution of a rank, and notes what has to be held for that.
    pub(super) fn find(
        &self,
        rank: usize,
        notice: &Notice,
        bytes: usize,
        held: &mut Vec<Arc<Exported>>,
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
        found.map_err(|error| self.health.explain(error, During::Registering))
    }
}

/// An operation of this rank before it is enqueued.
pub(super) struct Prepared {
    pub(super) label: Label,
    input: Option<ReadView>,
    output: WriteView,
    /// Memory to which the contribution is copied, as it is not registered.
    copy: Option<Bucket>,
    /// Place of the contribution.
    pub(super) notice: Notice,
}

impl Prepared {
    /// Finds a place for the contribution where others can read it.
    ///
    /// # Errors
    /// [`Error::Usage`] if the views are not of this endpoint's GPU; [`Error::System`] if memory runs out.
    pub(super) fn new(
        reach: &Reach,
        label: Label,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Result<Self> {
        let queue = output.queue();
        input.iter().try_for_each(|input| reach.queue(&input.queue(), &label).map(drop))?;
        let cuda = reach.queue(&queue, &label)?;
        let mut prepared = Prepared { label, input, output, copy: None, notice: Notice::default() };
        let contribution = prepared.contribution();
        if contribution.is_empty() || !prepared.contributes(reach.rank) {
            return Ok(prepared);
        }
        match registered(&contribution) {
            Some((bucket, offset)) => prepared.notice = bucket.notice(offset),
            None => {
                let copy = reach.exports.take(cuda, contribution.byte_len())?;
                prepared.notice = copy.notice(0);
                prepared.copy = Some(copy);
            }
        }
        Ok(prepared)
    }

    fn contribution(&self) -> Span {
        self.input.as_ref().map_or_else(|| self.output.span(), ReadView::span)
    }

    /// Returns true if others read what this rank has.
    fn contributes(&self, rank: usize) -> bool {
        self.label.fingerprint.root.is_none_or(|root| root as usize == rank)
    }

    /// Returns the size of the result.
    pub(super) fn bytes(&self) -> usize {
        self.output.byte_len()
    }

    /// Returns the queue that does the work.
    pub(super) fn queue(&self) -> Queue {
        self.output.queue()
    }

    /// Enqueues the operation, now that the places of all contributions are known.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub(super) fn enqueue(self, reach: &Arc<Reach>, notices: &[Notice], tally: &Tally) -> Result<()> {
        let contribution = self.contribution();
        let bytes = contribution.byte_len();
        let mut theirs = Vec::new();
        let find = |(rank, notice): (usize, &Notice)| match self.contributes(rank) {
            true if rank == reach.rank => Ok(notice.address),
            true => reach.find(rank, notice, bytes, &mut theirs),
            false => Ok(0),
        };
        let sources = notices.iter().enumerate().map(find).collect::<Result<Vec<_>>>()?;
        let queue = self.queue();
        let writes = vec![self.output.span()];
        let reads = self.input.as_ref().map(ReadView::span).into_iter().collect();
        let first = reach.step.load(Ordering::Relaxed);
        let mut step = first;
        let held = (Arc::clone(reach), self.copy, theirs);
        let fingerprint = self.label.fingerprint;
        let output = self.output.span();
        let is_copied = held.1.is_some();
        let enqueued = enqueue::enqueue(&queue, reads, writes, held, |work| {
            if is_copied {
                copy(work, address(&contribution), sources[reach.rank], bytes)?;
            }
            let transfer = Transfer { reach, fingerprint, sources: &sources, to: address(&output), tally };
            let mut steps = Steps { reach, step: &mut step };
            let enqueued = transfer.enqueue(work, &mut steps, output.len());
            if enqueued.is_err() && *steps.step != first {
                // What is on the stream waits for others all the same, and its end is to be known; where the driver refuses
                // this, too, it is watched for ever.
                let _ = steps.end(work);
            }
            enqueued
        });
        reach.step.store(step, Ordering::Relaxed);
        if let Some(cuda) = CudaQueue::of(&queue).filter(|_| step != first) {
            let awaited = Awaited::Steps { first, last: step };
            cuda.watch(Arc::new(Flight::new(reach, &queue, self.label, awaited)));
        }
        enqueued
    }
}

/// Steps of one operation, as they are enqueued.
struct Steps<'a> {
    reach: &'a Reach,
    /// The last one.
    step: &'a mut u32,
}

impl Steps<'_> {
    /// Lets the stream take the next step, and wait until all others have.
    fn take(&mut self, work: &PathWork<'_>) -> Result<()> {
        *self.step = self.step.wrapping_add(1);
        self.reach.words.tell_step(work, *self.step)?;
        self.reach.words.await_step(work, *self.step)
    }

    /// Lets the own host know that the stream is done. Steps are counted alike on all ranks, and so is this one.
    fn end(&mut self, work: &PathWork<'_>) -> Result<()> {
        *self.step = self.step.wrapping_add(1);
        self.reach.words.note_step(work, *self.step)
    }
}

/// An operation whose contributions lie at known addresses.
struct Transfer<'a> {
    reach: &'a Reach,
    fingerprint: Fingerprint,
    /// Contributions by rank.
    sources: &'a [CUdeviceptr],
    /// Address of the result.
    to: CUdeviceptr,
    tally: &'a Tally,
}

impl Transfer<'_> {
    /// Enqueues the operation, whose result has `len` elements.
    fn enqueue(&self, work: &mut PathWork<'_>, steps: &mut Steps<'_>, len: usize) -> Result<()> {
        steps.take(work)?;
        match self.fingerprint.operation {
            OperationKind::AllReduce => self.all_reduce(work, steps, len)?,
            OperationKind::ReduceScatter => {
                self.combine(work, self.reach.rank * len..(self.reach.rank + 1) * len, self.to)?
            }
            OperationKind::AllGather => self.all_gather(work, len)?,
            _ => self.broadcast(work, len)?,
        }
        steps.take(work)?;
        steps.end(work)
    }

    /// Combines the own chunk where the contribution is, and copies the chunks that others have combined.
    fn all_reduce(&self, work: &mut PathWork<'_>, steps: &mut Steps<'_>, len: usize) -> Result<()> {
        let ranks = self.sources.len();
        let own = self.reach.rank;
        let part = chunk(len, ranks, own);
        let place = self.sources[own] + self.bytes(part.start) as CUdeviceptr;
        self.combine(work, part, place)?;
        steps.take(work)?;
        // Begins with the next rank, so that not all ranks read from the same one.
        (1..=ranks).map(|distance| (own + distance) % ranks).try_for_each(|rank| {
            let part = chunk(len, ranks, rank);
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

    fn all_gather(&self, work: &PathWork<'_>, len: usize) -> Result<()> {
        let ranks = self.sources.len();
        let block = self.bytes(len / ranks);
        let ranks = (1..=ranks).map(|distance| (self.reach.rank + distance) % ranks);
        ranks.into_iter().try_for_each(|rank| self.fetch(work, rank, 0..block, rank * block))
    }

    fn broadcast(&self, work: &PathWork<'_>, len: usize) -> Result<()> {
        let root = self.fingerprint.root.map_or(0, |root| root as usize);
        if root == self.reach.rank {
            return Ok(());
        }
        self.fetch(work, root, 0..self.bytes(len), 0)
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
    // SAFETY: the stream is there, and its work keeps as many bytes in both places: peers do not write before this rank
    // has told that it has read.
    let status = unsafe { (work.driver().cuMemcpyDtoDAsync_v2)(to, from, bytes, work.stream()) };
    work.expect(status, &format!("copy {bytes} bytes between ranks"))
}
