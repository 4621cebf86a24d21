//! One rank's part in an operation: its contribution, and the steps of its stream.
//!
//! | step of a stream | work of the stream before it announces the step |
//! |---|---|
//! | 1, entered | copies the contribution if that is not registered |
//! | 2, combined or read | waits for step 1 of all, and does the operation's work |
//! | 3, read, of an all-reduce only | waits for step 2 of all, and copies the chunks that the others have combined |
//! | done, for its own host only | waits for the last step of all |

use super::collectives::{CollectiveTransfer, EndpointReach, copy};
use super::contribution::Contribution;
use super::memory::{ExportedMemory, RegisteredMemory, registered};
use super::watch::{AwaitedWords, OperationInFlight};
use crate::device::cuda::CudaQueue;
use crate::device::cuda::enqueue::{self, PathWork, address};
use crate::device::{Queue, SyncPoint};
use crate::error::Result;
use crate::memory::{ReadView, Span, WriteView};
use crate::transport::{Label, Tally};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An operation of this rank before it is enqueued.
pub(super) struct PreparedStep {
    pub(super) label: Label,
    input: Option<ReadView>,
    output: WriteView,
    /// Memory to which the contribution is copied, as it is not registered.
    copy: Option<RegisteredMemory>,
    /// Place of the contribution.
    pub(super) notice: Contribution,
}

impl PreparedStep {
    /// Finds a place for the contribution where others can read it.
    ///
    /// # Errors
    /// [`Error::Usage`](crate::Error::Usage) if the views are not of this endpoint's GPU; [`Error::System`](crate::Error::System) if memory runs out.
    pub(super) fn new(
        reach: &EndpointReach,
        label: Label,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Result<Self> {
        let queue = output.queue();
        input.iter().try_for_each(|input| reach.queue(&input.queue(), &label).map(drop))?;
        let cuda = reach.queue(&queue, &label)?;
        let mut prepared = PreparedStep { label, input, output, copy: None, notice: Contribution::default() };
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

    /// Returns true if other ranks read this rank's contribution.
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

    /// Returns the part that is enqueued, now that the places of all contributions are known.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    pub(super) fn part(
        self,
        reach: &Arc<EndpointReach>,
        notices: &[Contribution],
        tally: &Arc<Tally>,
    ) -> Result<RankStep> {
        let contribution = self.contribution();
        let bytes = contribution.byte_len();
        let mut theirs = Vec::new();
        let find = |(rank, notice): (usize, &Contribution)| match self.contributes(rank) {
            true if rank == reach.rank => Ok(notice.address),
            true => reach.find(rank, notice, bytes, &mut theirs),
            false => Ok(0),
        };
        let sources = notices.iter().enumerate().map(find).collect::<Result<Vec<_>>>()?;
        let to = self.output.span();
        let fingerprint = self.label.fingerprint;
        let transfer = CollectiveTransfer {
            reach: Arc::clone(reach),
            fingerprint,
            sources,
            to: address(&to),
            len: to.len(),
            tally: Arc::clone(tally),
        };
        let first = reach.step.load(Ordering::Relaxed);
        Ok(RankStep {
            label: self.label,
            queue: self.queue(),
            reads: self.input.as_ref().map(ReadView::span).into_iter().collect(),
            to,
            contribution,
            held: Arc::new(HeldMemory { _reach: Arc::clone(reach), copy: self.copy, _theirs: theirs }),
            _views: (self.input, self.output),
            transfer,
            first,
            step: first,
            outcome: Ok(()),
        })
    }
}

/// Memory and facts that work in flight needs.
struct HeldMemory {
    _reach: Arc<EndpointReach>,
    /// Memory to which the contribution is copied.
    copy: Option<RegisteredMemory>,
    /// Contributions of other ranks of this process.
    _theirs: Vec<Arc<ExportedMemory>>,
}

/// One rank's part in an operation that is enqueued step by step, on any thread.
pub(super) struct RankStep {
    label: Label,
    queue: Queue,
    reads: Vec<Span>,
    to: Span,
    contribution: Span,
    held: Arc<HeldMemory>,
    /// Views of the memory that is read and written, so that no other work uses it before all steps are enqueued.
    _views: (Option<ReadView>, WriteView),
    transfer: CollectiveTransfer,
    /// Step of the endpoint before the operation, and the last one that is enqueued.
    first: u32,
    step: u32,
    outcome: Result<()>,
}

impl RankStep {
    /// Returns the number of steps, equal on all ranks.
    pub(super) fn steps(&self) -> usize {
        self.transfer.announced_steps() + 1
    }

    /// Enqueues all steps.
    pub(super) fn enqueue_all(&mut self) {
        self.enqueue_steps(0..self.steps());
    }

    /// Enqueues one step, after those before it.
    pub(super) fn enqueue(&mut self, step: usize) {
        if step < self.steps() {
            self.enqueue_steps(step..step + 1);
        }
    }

    /// Ends the part: makes the device watch the enqueued work, and returns the outcome.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver has refused.
    pub(super) fn finish(self) -> Result<()> {
        let RankStep { label, queue, transfer, first, step, outcome, .. } = self;
        transfer.reach.step.store(step, Ordering::Relaxed);
        if let Some(cuda) = CudaQueue::of(&queue).filter(|_| step != first) {
            let awaited = AwaitedWords::Steps { first, last: step };
            cuda.watch(Arc::new(OperationInFlight::new(&transfer.reach, &queue, label, awaited)));
        }
        outcome
    }

    fn enqueue_steps(&mut self, mut steps: Range<usize>) {
        if self.outcome.is_err() {
            return;
        }
        let mut last = self.step;
        let reads = self.reads.clone();
        let writes = vec![self.to.clone()];
        self.outcome = enqueue::enqueue(&self.queue, reads, writes, Arc::clone(&self.held), |work| {
            let enqueued = steps.try_for_each(|step| self.enqueue_step(work, step, &mut last));
            if enqueued.is_err() && last != self.first {
                // Enqueued work still waits for other ranks, and its end must be detected. If the driver refuses this as well,
                // the work is watched for ever.
                last = last.wrapping_add(1);
                let _ = self.transfer.reach.words.note_step(work, last);
            }
            enqueued
        });
        self.step = last;
    }

    /// Makes the stream wait until all other ranks have taken the previous step, do the work, and announce the step.
    fn enqueue_step(&self, work: &mut PathWork<'_>, step: usize, last: &mut u32) -> Result<()> {
        let EndpointReach { words, rank, .. } = &*self.transfer.reach;
        match step {
            0 if self.held.copy.is_some() => {
                let from = address(&self.contribution);
                copy(work, from, self.transfer.sources[*rank], self.contribution.byte_len())?;
            }
            0 => {}
            _ => {
                let place = match step {
                    1 => SyncPoint::IpcEntered,
                    _ if step < self.transfer.announced_steps() => SyncPoint::IpcCombined,
                    _ => SyncPoint::IpcRead,
                };
                words.await_step(work, *last, place)?;
                self.transfer.work(work, step)?;
            }
        }
        *last = last.wrapping_add(1);
        // All ranks count the same steps, including the step that is announced only to the own host.
        match step < self.transfer.announced_steps() {
            true => words.tell_step(work, *last),
            false => words.note_step(work, *last),
        }
    }
}
