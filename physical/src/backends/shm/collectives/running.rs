//! One native collective in progress: its entry, its transfer, and the ranks that it waits for.

use super::ShmContext;
use super::entry::{RoundEntry, SmallOutcome, invalid_control_block, prepare};
use super::staged::StagedTransfer;
use crate::backends::shm::control_block::{Counter, PAYLOAD};
use crate::backends::shm::segment::registered::{BufferLocation, RegisteredTransfer};
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use crate::transport::Label;

/// Result of one attempt to make progress.
pub(crate) enum StepOutcome {
    /// Nothing could be done.
    Nothing,
    /// Number of bytes that were processed.
    Moved(usize),
    /// The operation is complete; the output has this number of bytes.
    Done(usize),
}

/// Phases of a collective, in order.
enum Phase {
    /// Waits until all ranks have entered.
    Entering,
    /// Reads from the memory of the peers.
    Transferring(Transfer),
    /// Waits until all ranks have finished reading. All ranks below this number are known to have finished.
    Finishing(usize),
    /// There is no result: this rank had abandoned the operation, and its data is undefined.
    Invalid(usize),
}

/// Way of reading the peers' contributions.
enum Transfer {
    Registered(RegisteredTransfer),
    Staged(StagedTransfer),
}

/// Native collective in progress, with its buffers.
pub(crate) struct RunningCollective {
    pub(crate) entry: RoundEntry,
    pub(crate) input: Option<ReadView>,
    pub(crate) output: WriteView,
    phase: Phase,
}

impl RunningCollective {
    /// Enters the operation. Publishes the contribution if it is small, or else its location if the buffer is
    /// registered.
    pub(crate) fn begin(
        context: &ShmContext,
        lane: usize,
        round: u64,
        mut label: Label,
        input: Option<ReadView>,
        mut output: WriteView,
    ) -> Self {
        let registration = input.as_ref().map_or_else(|| output.registration(), ReadView::registration);
        let small = input.as_ref().map_or(output.byte_len(), |input| input.byte_len()) <= PAYLOAD;
        label.fingerprint.registered =
            !small && context.regions.contains(registration.map(|(which, _)| which));
        prepare(context, &label.fingerprint, output.bytes_mut());
        let source;
        let payload = match registration {
            _ if small => {
                let bytes = input.as_ref().map_or_else(|| output.bytes(), ReadView::bytes);
                RoundEntry::payload(context, &label, bytes)
            }
            Some((registration, offset)) => {
                source = BufferLocation { index: registration.index, offset }.to_bytes();
                &source
            }
            None => &[],
        };
        let entry = RoundEntry::post(context, lane, round, label, payload);
        context.unpark_peers();
        RunningCollective { entry, input, output, phase: Phase::Entering }
    }

    /// Continues a small in-place operation that this rank has already entered.
    pub(crate) fn resume(entry: RoundEntry, output: WriteView) -> Self {
        RunningCollective { entry, input: None, output, phase: Phase::Entering }
    }

    /// Returns true while some ranks are not known to have entered.
    pub(crate) fn is_entering(&self) -> bool {
        matches!(self.phase, Phase::Entering)
    }

    /// Makes progress without blocking.
    pub(crate) fn advance(&mut self, context: &ShmContext) -> Result<StepOutcome> {
        match self.phase {
            Phase::Entering => self.arrive(context),
            Phase::Transferring(_) => self.work(context),
            Phase::Finishing(seen) => {
                let finished = |peer: usize| peer == context.rank || self.peer_has_finished(context, peer);
                let seen = (seen..context.size()).find(|peer| !finished(*peer));
                self.phase = Phase::Finishing(seen.unwrap_or(context.size()));
                Ok(if seen.is_some() { StepOutcome::Nothing } else { self.done() })
            }
            Phase::Invalid(_) => Ok(StepOutcome::Nothing),
        }
    }

    /// Gives the operation up: see [`RoundEntry::withdraw`].
    pub(crate) fn withdraw(self, context: &ShmContext) {
        self.entry.withdraw(context);
    }

    /// Returns the bytes of each rank's contribution.
    fn bytes(&self) -> usize {
        self.input.as_ref().map_or(self.output.byte_len(), |input| input.byte_len())
    }

    /// Returns true if `peer` has read all that it needs.
    fn peer_has_finished(&self, context: &ShmContext, peer: usize) -> bool {
        context.segments[peer].control_block().progress(Counter::Finished, self.entry.lane, self.entry.round)
            > 0
    }

    /// Returns the step of a complete operation.
    fn done(&self) -> StepOutcome {
        StepOutcome::Done(self.output.byte_len())
    }

    /// Begins the transfer once all ranks have entered; finishes a small operation.
    fn arrive(&mut self, context: &ShmContext) -> Result<StepOutcome> {
        if !self.entry.is_complete(context)? {
            return Ok(StepOutcome::Nothing);
        }
        self.phase = Phase::Transferring(if self.entry.label.fingerprint.registered {
            let source =
                |rank| self.entry.slot_view(context, rank).map(|slot_view| BufferLocation::of(&slot_view));
            let source = |rank| source(rank).ok_or_else(|| invalid_control_block(context, rank));
            let sources = (0..context.size()).map(source).collect::<Result<_>>()?;
            Transfer::Registered(RegisteredTransfer::new(sources, context))
        } else if self.bytes() > PAYLOAD {
            Transfer::Staged(StagedTransfer::default())
        } else {
            return Ok(match self.entry.finish(context, self.output.bytes_mut())? {
                SmallOutcome::Complete => self.done(),
                SmallOutcome::WithdrawnBy(peer) => self.invalidate(peer),
            });
        });
        self.work(context)
    }

    /// Marks the result invalid. The operation then waits for the verdict on the world, which names the cause: the peer
    /// may have given up because of another rank.
    fn invalidate(&mut self, peer: usize) -> StepOutcome {
        self.phase = Phase::Invalid(peer);
        StepOutcome::Nothing
    }

    /// Advances the transfer, and publishes when this rank has finished reading.
    fn work(&mut self, context: &ShmContext) -> Result<StepOutcome> {
        // Taken out while it works on the rest of the collective.
        let Phase::Transferring(mut reading) = std::mem::replace(&mut self.phase, Phase::Finishing(0)) else {
            return Ok(StepOutcome::Nothing);
        };
        let step = match &mut reading {
            Transfer::Registered(work) => work.advance(self, context)?,
            Transfer::Staged(staged) => staged.advance(self, context),
        };
        match step {
            StepOutcome::Done(_) => {
                if let Some(peer) = context.peers().find(|peer| self.entry.has_withdrawn(context, *peer)) {
                    return Ok(self.invalidate(peer));
                }
                context.mine().control_block().set_progress(
                    Counter::Finished,
                    self.entry.lane,
                    self.entry.round,
                    1,
                );
                context.unpark_peers();
                Ok(StepOutcome::Moved(1))
            }
            step => {
                self.phase = Phase::Transferring(reading);
                Ok(if matches!(step, StepOutcome::Moved(0)) { StepOutcome::Nothing } else { step })
            }
        }
    }

    /// Returns the ranks for which the operation waits.
    pub(crate) fn missing(&self, context: &ShmContext) -> Vec<usize> {
        let waits = |peer: &usize| {
            let control_block = context.segments[*peer].control_block();
            match self.phase {
                Phase::Invalid(by) => *peer == by,
                Phase::Entering => control_block.read(self.entry.lane, self.entry.round).is_none(),
                Phase::Transferring(_) | Phase::Finishing(_) => !self.peer_has_finished(context, *peer),
            }
        };
        context.peers().filter(waits).collect()
    }
}
