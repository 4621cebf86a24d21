//! The first step of every native collective, which is the only step of a small one. Each rank publishes its operation, with
//! its contribution if that is small, and continues once all ranks have done so.

use super::ShmContext;
use crate::backends::shm::bytes::SharedBytes;
use crate::backends::shm::control_block::{LabelBytes, PAYLOAD, SlotView, encode_label};
use crate::backends::shm::segment::Segment;
use crate::backends::shm::segment::registered::{ordered_reduction, scaled};
use crate::device;
use crate::error::{Error, Result};
use crate::memory::dtype::ReduceOp;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::{NOTICE_BYTES, chunk};
use crate::transport::{Label, native};

/// Zeros in place of a payload that its writer has withdrawn.
static GONE: [u8; PAYLOAD] = [0; PAYLOAD];

/// Part of one rank in one round of a lane, from the moment it has published the operation.
pub(crate) struct RoundEntry {
    pub(crate) lane: usize,
    pub(crate) round: u64,
    pub(crate) label: Label,
    /// Encoded label.
    posted: LabelBytes,
    /// Number of ranks, from rank 0 on, that are known to have entered.
    seen: usize,
}

impl RoundEntry {
    /// Publishes that this rank has entered the operation. The caller then calls [`ShmContext::unpark_peers`].
    pub(crate) fn post(context: &ShmContext, lane: usize, round: u64, label: Label, payload: &[u8]) -> Self {
        let entry = Self::posted(lane, round, label);
        if context.size() > 1 {
            let carried = native::payload(&label.fingerprint, context.size(), context.rank);
            context.traffic.notified(NOTICE_BYTES + payload.len(), carried);
        }
        context.mine().control_block().post(lane, round, &entry.posted, payload);
        entry
    }

    /// Returns the entry that [`RoundEntry::post`] returned for the same round.
    pub(crate) fn posted(lane: usize, round: u64, label: Label) -> Self {
        RoundEntry { lane, round, label, posted: encode_label(&label), seen: 0 }
    }

    /// Returns true once all ranks have entered the same operation. Fails if a rank has entered a different one.
    #[inline]
    pub(crate) fn is_complete(&mut self, context: &ShmContext) -> Result<bool> {
        while self.seen < context.size() {
            if self.seen == context.rank {
                self.seen += 1;
                continue;
            }
            let Some(slot_view) = self.slot_view(context, self.seen) else { return Ok(false) };
            if !slot_view.is_of(&self.posted) {
                return Err(self.mismatch(context, self.seen, &slot_view));
            }
            self.seen += 1;
        }
        Ok(true)
    }

    /// Polls at most `polls` times until all ranks have entered, and stores the result of a small operation. Returns
    /// `None` if not all ranks have entered.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        context: &ShmContext,
        output: &mut [u8],
        polls: usize,
    ) -> Result<Option<SmallOutcome>> {
        for _ in 0..polls {
            if self.is_complete(context)? {
                context.mine().control_block().vacate(self.lane, self.round + 1, output.len());
                return self.finish(context, output).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the slot of `rank` once that rank has entered.
    pub(crate) fn slot_view<'a>(
        &self,
        context: &'a ShmContext,
        rank: usize,
    ) -> Option<SlotView<'a, Segment>> {
        context.segments[rank].control_block().read(self.lane, self.round)
    }

    /// Builds the error for a rank that has entered a different operation.
    fn mismatch(&self, context: &ShmContext, rank: usize, slot_view: &SlotView<'_, Segment>) -> Error {
        let peer = context.health.peers()[rank].clone();
        match slot_view.label() {
            Some(theirs) => self.label.mismatch(theirs.fingerprint, peer),
            None => invalid_control_block(context, rank),
        }
    }

    /// Returns the root rank, 0 for operations without one.
    pub(crate) fn root(&self) -> usize {
        self.label.fingerprint.root.map_or(0, |root| root as usize)
    }

    /// Returns the payload of a small operation: `bytes`, or nothing on ranks that are not its root.
    pub(crate) fn payload<'a>(context: &ShmContext, label: &Label, bytes: &'a [u8]) -> &'a [u8] {
        let silent = label.fingerprint.root.is_some_and(|root| root as usize != context.rank);
        if silent { &[] } else { bytes }
    }

    /// Abandons the operation: peers are notified that the memory of this rank is invalid before it is released.
    pub(crate) fn withdraw(&self, context: &ShmContext) {
        context.mine().control_block().withdraw(self.lane, self.round);
    }

    /// Returns true if a peer has given the operation up.
    pub(crate) fn has_withdrawn(&self, context: &ShmContext, peer: usize) -> bool {
        context.segments[peer].control_block().has_withdrawn(self.lane, self.round)
    }

    /// Stores the result of a small operation that all ranks have entered.
    ///
    /// # Errors
    /// [`Error::Usage`] if a peer broke the protocol, and may have written while this rank read.
    #[inline]
    pub(crate) fn finish(&self, context: &ShmContext, output: &mut [u8]) -> Result<SmallOutcome> {
        self.compute(context, output);
        let posted = |peer: usize| context.segments[peer].control_block().is_published(self.lane, self.round);
        match context.peers().find(|peer| !posted(*peer)) {
            None => Ok(SmallOutcome::Complete),
            Some(peer) if self.has_withdrawn(context, peer) => Ok(SmallOutcome::WithdrawnBy(peer)),
            Some(peer) => Err(invalid_control_block(context, peer)),
        }
    }

    /// Computes the result from the payloads of all ranks.
    fn compute(&self, context: &ShmContext, output: &mut [u8]) {
        let Fingerprint { operation, dtype, .. } = self.label.fingerprint;
        let ranks = context.size();
        let rank = context.rank;
        let root = self.root();
        let posted = |rank: usize| {
            let slot_view = self.slot_view(context, rank);
            slot_view.map_or(SharedBytes::of(&GONE), |slot_view| slot_view.payload())
        };
        let ordered_reduction = |owner| ordered_reduction(&self.label.fingerprint, context, owner);
        let bytes = output.len();
        match operation {
            OperationKind::Broadcast => posted(root).part(0..bytes).load(output),
            OperationKind::AllGather => {
                let block = bytes / ranks;
                (0..ranks).for_each(|r| posted(r).part(0..block).load(&mut output[r * block..][..block]));
            }
            OperationKind::ReduceScatter => {
                ordered_reduction(rank).store(|r| posted(r).part(rank * bytes..(rank + 1) * bytes), output);
            }
            // Two contributions are combined in one order only.
            OperationKind::AllReduce if ranks == 2 => {
                ordered_reduction(0).store(|r| posted(r).part(0..bytes), output)
            }
            OperationKind::AllReduce => {
                for owner in 0..ranks {
                    let part = scaled(chunk(bytes / dtype.size(), ranks, owner), dtype.size());
                    ordered_reduction(owner)
                        .store(|r| posted(r).part(part.clone()), &mut output[part.clone()]);
                }
            }
            _ => {}
        }
    }
}

/// Validity of a small operation's result.
pub(crate) enum SmallOutcome {
    /// The result is valid.
    Complete,
    /// This rank had abandoned the operation, and may have written while it was read.
    WithdrawnBy(usize),
}

/// Divides the contribution of this rank if the division precedes the sum: for the mean of 16-bit floats.
pub(crate) fn prepare(context: &ShmContext, fingerprint: &Fingerprint, contribution: &mut [u8]) {
    let halves = fingerprint.reduce == Some(ReduceOp::Mean) && fingerprint.dtype.is_half();
    if halves && fingerprint.operation == OperationKind::AllReduce {
        device::divide(context.size(), fingerprint.dtype, contribution);
    }
}

/// Builds the error for a peer that breaks the protocol of the control block.
pub(crate) fn invalid_control_block(context: &ShmContext, rank: usize) -> Error {
    let peer = &context.health.peers()[rank];
    Error::usage(format!("{peer} wrote invalid data to its control block"), "use the same build everywhere")
}
