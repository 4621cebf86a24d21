//! The beginning of every native collective, and all of a small one: each rank posts what it is about to do, with its few
//! bytes, and goes on once everyone has.

use super::board::{LabelBytes, Notice, PAYLOAD, label_bytes};
use super::bytes::SharedBytes;
use super::collectives::Surroundings;
use super::link::Segment;
use super::work::{combination, scaled};
use crate::device;
use crate::dtype::ReduceOp;
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::native::{NOTICE_BYTES, chunk};
use crate::transport::Label;

/// In place of a payload that its writer has taken back.
static GONE: [u8; PAYLOAD] = [0; PAYLOAD];

/// One rank's part in one round of a lane, from the moment it has posted.
pub(super) struct Arrival {
    pub(super) lane: usize,
    pub(super) round: u64,
    pub(super) label: Label,
    posted: LabelBytes,
    /// The ranks below are known to have come.
    seen: usize,
}

impl Arrival {
    /// Tells everyone that this rank has come.
    pub(super) fn post(around: &Surroundings, lane: usize, round: u64, label: Label, payload: &[u8]) -> Self {
        let arrival = Self::posted(lane, round, label);
        if around.size() > 1 {
            around.traffic.sent(NOTICE_BYTES + payload.len());
        }
        around.mine().board().post(lane, round, &arrival.posted, payload);
        around.nudge_all();
        arrival
    }

    /// What [`Arrival::post`] returned for the same round.
    pub(super) fn posted(lane: usize, round: u64, label: Label) -> Self {
        Arrival { lane, round, label, posted: label_bytes(&label), seen: 0 }
    }

    /// Whether everyone has come, for the same operation.
    pub(super) fn is_complete(&mut self, around: &Surroundings) -> Result<bool> {
        while self.seen < around.size() {
            let Some(notice) = self.notice(around, self.seen) else { return Ok(false) };
            if !notice.is_of(&self.posted) {
                return Err(self.mismatch(around, self.seen, &notice));
            }
            self.seen += 1;
        }
        Ok(true)
    }

    /// What `rank` has posted.
    pub(super) fn notice<'a>(&self, around: &'a Surroundings, rank: usize) -> Option<Notice<'a, Segment>> {
        around.segments[rank].board().read(self.lane, self.round)
    }

    fn mismatch(&self, around: &Surroundings, rank: usize, notice: &Notice<'_, Segment>) -> Error {
        let peer = around.health.peers()[rank].clone();
        match notice.label() {
            Some(theirs) => self.label.mismatch(theirs.fingerprint, peer),
            None => nonsense(around, rank),
        }
    }

    pub(super) fn root(&self) -> usize {
        self.label.fingerprint.root.map_or(0, |root| root as usize)
    }

    /// The payload of a small operation to which this rank contributes `bytes`.
    pub(super) fn payload<'a>(around: &Surroundings, label: &Label, bytes: &'a [u8]) -> &'a [u8] {
        let silent = label.fingerprint.root.is_some_and(|root| root as usize != around.rank);
        if silent { &[] } else { bytes }
    }

    /// Gives the operation up: peers learn that this rank's memory does not count any more, before it is released.
    pub(super) fn withdraw(&self, around: &Surroundings) {
        around.mine().board().withdraw(self.lane, self.round);
    }

    /// Whether a peer has given the operation up.
    pub(super) fn was_left_by(&self, around: &Surroundings, peer: usize) -> bool {
        around.segments[peer].board().has_withdrawn(self.lane, self.round)
    }

    /// Stores the result of a small operation to which everyone has come.
    ///
    /// # Errors
    /// [`Error::Usage`] if a peer broke the order, and may have written while this rank read.
    pub(super) fn finish(&self, around: &Surroundings, output: &mut [u8]) -> Result<Checked> {
        self.compute(around, output);
        let posted = |peer: usize| around.segments[peer].board().is_posted(self.lane, self.round);
        match around.peers().find(|peer| !posted(*peer)) {
            None => Ok(Checked::Good),
            Some(peer) if self.was_left_by(around, peer) => Ok(Checked::LeftBy(peer)),
            Some(peer) => Err(nonsense(around, peer)),
        }
    }

    fn compute(&self, around: &Surroundings, output: &mut [u8]) {
        let Fingerprint { operation, dtype, .. } = self.label.fingerprint;
        let ranks = around.size();
        let rank = around.rank;
        let root = self.root();
        let posted = |rank: usize| {
            let notice = self.notice(around, rank);
            notice.map_or(SharedBytes::of(&GONE), |notice| notice.payload())
        };
        let combination = |owner| combination(&self.label.fingerprint, around, owner);
        let bytes = output.len();
        match operation {
            OperationKind::Broadcast => posted(root).part(0..bytes).load(output),
            OperationKind::AllGather => {
                let block = bytes / ranks;
                (0..ranks).for_each(|r| posted(r).part(0..block).load(&mut output[r * block..][..block]));
            }
            OperationKind::ReduceScatter => {
                combination(rank).store(|r| posted(r).part(rank * bytes..(rank + 1) * bytes), output);
            }
            // Two contributions are combined in one order only.
            OperationKind::AllReduce if ranks == 2 => {
                combination(0).store(|r| posted(r).part(0..bytes), output)
            }
            OperationKind::AllReduce => {
                for owner in 0..ranks {
                    let part = scaled(chunk(bytes / dtype.size(), ranks, owner), dtype.size());
                    combination(owner).store(|r| posted(r).part(part.clone()), &mut output[part.clone()]);
                }
            }
            _ => {}
        }
    }
}

/// What a small operation's result is worth.
pub(super) enum Checked {
    Good,
    /// This rank had given up, and may have written while it was read.
    LeftBy(usize),
}

/// Divides a contribution of this rank where that comes before the sum: the mean of 16-bit floats.
pub(super) fn prepare(around: &Surroundings, fingerprint: &Fingerprint, contribution: &mut [u8]) {
    let halves = fingerprint.reduce == Some(ReduceOp::Mean) && fingerprint.dtype.is_half();
    if halves && fingerprint.operation == OperationKind::AllReduce {
        device::divide(around.size(), fingerprint.dtype, contribution);
    }
}

/// The error of a peer that does not keep to the board's rules.
pub(super) fn nonsense(around: &Surroundings, rank: usize) -> Error {
    let peer = &around.health.peers()[rank];
    Error::usage(format!("{peer} wrote nonsense on its board"), "use the same build everywhere")
}
