//! One native collective under way: what it posts, whom it waits for, and the work between.

use super::board::{Counter, LabelBytes, Notice, PAYLOAD, label_bytes};
use super::bytes::SharedBytes;
use super::collectives::Surroundings;
use super::link::Segment;
use super::staged::Staged;
use super::work::{Source, Work, combination, scaled};
use crate::device;
use crate::dtype::ReduceOp;
use crate::error::{Error, Result};
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::memory::{ReadView, WriteView};
use crate::native::NOTICE_BYTES;
use crate::native::chunk;
use crate::transport::{Label, TransportKind};

/// What an attempt to go on has brought.
pub(super) enum Step {
    Nothing,
    /// So many bytes were worked on.
    Moved(usize),
    /// Everything; the output has so many bytes.
    Done(usize),
}

enum Stage {
    /// Waiting until everyone has begun: those below are known to have.
    Arriving(usize),
    /// Reading from the peers' memory.
    Working(Reading),
    /// Waiting until everyone has finished reading: those below are known to have.
    Leaving(usize),
    /// Of this rank's memory, what it has read may be anything, as it had given up: there is no result.
    Spoiled(usize),
}

enum Reading {
    Registered(Work),
    Staged(Staged),
}

/// In place of a payload that its writer has taken back.
static GONE: [u8; PAYLOAD] = [0; PAYLOAD];

pub(super) struct Job {
    pub(super) lane: usize,
    pub(super) round: u64,
    pub(super) label: Label,
    posted: LabelBytes,
    pub(super) input: Option<ReadView>,
    pub(super) output: WriteView,
    stage: Stage,
}

impl Job {
    /// Tells everyone that this rank has come, with the bytes or with where they are.
    pub(super) fn begin(
        around: &Surroundings,
        lane: usize,
        round: u64,
        mut label: Label,
        input: Option<ReadView>,
        mut output: WriteView,
    ) -> Result<Self> {
        let registration = input.as_ref().map_or_else(|| output.registration(), ReadView::registration);
        let fingerprint = &mut label.fingerprint;
        let small = input.as_ref().map_or(output.bytes().len(), |input| input.bytes().len()) <= PAYLOAD;
        fingerprint.registered = !small && around.regions.knows(registration.map(|(which, _)| which));
        let halves_first = fingerprint.reduce == Some(ReduceOp::Mean) && fingerprint.dtype.is_half();
        if halves_first && fingerprint.operation == OperationKind::AllReduce {
            device::divide(around.size(), fingerprint.dtype, output.bytes_mut());
        }
        let posted = label_bytes(&label);
        let source;
        let payload = match registration {
            _ if small => {
                let root = label.fingerprint.root.map(|root| root as usize);
                let silent = root.is_some_and(|root| root != around.rank);
                let bytes = input.as_ref().map_or_else(|| output.bytes(), ReadView::bytes);
                if silent { &[] } else { bytes }
            }
            Some((registration, offset)) => {
                source = Source { index: registration.index, offset }.to_bytes();
                &source
            }
            None => &[],
        };
        if around.size() > 1 {
            around.traffic.sent(TransportKind::Shm, NOTICE_BYTES + payload.len());
        }
        around.mine().board().post(lane, round, &posted, payload);
        around.nudge_all();
        Ok(Job { lane, round, label, posted, input, output, stage: Stage::Arriving(0) })
    }

    pub(super) fn is_arriving(&self) -> bool {
        matches!(self.stage, Stage::Arriving(_))
    }

    pub(super) fn advance(&mut self, around: &Surroundings) -> Result<Step> {
        match self.stage {
            Stage::Arriving(_) => self.arrive(around),
            Stage::Working(_) => self.work(around),
            Stage::Leaving(seen) => {
                let finished = |peer: usize| peer == around.rank || self.has_finished(around, peer);
                let seen = (seen..around.size()).find(|peer| !finished(*peer));
                self.stage = Stage::Leaving(seen.unwrap_or(around.size()));
                Ok(if seen.is_some() { Step::Nothing } else { self.done() })
            }
            Stage::Spoiled(_) => Ok(Step::Nothing),
        }
    }

    /// Gives the operation up: peers learn that this rank's memory does not count any more, before it is released.
    pub(super) fn withdraw(self, around: &Surroundings) {
        around.mine().board().withdraw(self.lane, self.round);
    }

    /// Whether a peer has given the operation up.
    pub(super) fn was_left_by(&self, around: &Surroundings, peer: usize) -> bool {
        around.segments[peer].board().has_withdrawn(self.lane, self.round)
    }

    /// Bytes of what each rank contributes.
    fn bytes(&self) -> usize {
        self.input.as_ref().map_or(self.output.bytes().len(), |input| input.bytes().len())
    }

    fn has_finished(&self, around: &Surroundings, peer: usize) -> bool {
        around.segments[peer].board().count(Counter::Finished, self.lane, self.round) > 0
    }

    fn done(&self) -> Step {
        Step::Done(self.output.bytes().len())
    }

    /// What `rank` has posted.
    fn notice<'a>(&self, around: &'a Surroundings, rank: usize) -> Option<Notice<'a, Segment>> {
        around.segments[rank].board().read(self.lane, self.round)
    }

    fn arrive(&mut self, around: &Surroundings) -> Result<Step> {
        let Stage::Arriving(mut seen) = self.stage else { return Ok(Step::Nothing) };
        while seen < around.size() {
            let Some(notice) = self.notice(around, seen) else {
                self.stage = Stage::Arriving(seen);
                return Ok(Step::Nothing);
            };
            if !notice.is_of(&self.posted) {
                return Err(self.mismatch(around, seen, &notice));
            }
            seen += 1;
        }
        self.stage = Stage::Working(if self.label.fingerprint.registered {
            let source = |rank| self.notice(around, rank).map(|notice| Source::of(&notice));
            let source = |rank| source(rank).ok_or_else(|| nonsense(around, rank));
            let sources = (0..around.size()).map(source).collect::<Result<_>>()?;
            Reading::Registered(Work::new(sources, around))
        } else if self.bytes() > PAYLOAD {
            Reading::Staged(Staged::default())
        } else {
            self.compute(around);
            return self.check_posts(around);
        });
        self.work(around)
    }

    /// The end of a small operation: a peer that gave it up, or broke the order, may have written while this rank read.
    fn check_posts(&mut self, around: &Surroundings) -> Result<Step> {
        let posted = |peer: usize| around.segments[peer].board().is_posted(self.lane, self.round);
        match around.peers().find(|peer| !posted(*peer)) {
            None => Ok(self.done()),
            Some(peer) if self.was_left_by(around, peer) => Ok(self.spoil(peer)),
            Some(peer) => Err(nonsense(around, peer)),
        }
    }

    /// Waits for the verdict, which names the cause: the peer may have given up because of another.
    fn spoil(&mut self, peer: usize) -> Step {
        self.stage = Stage::Spoiled(peer);
        Step::Nothing
    }

    fn work(&mut self, around: &Surroundings) -> Result<Step> {
        // Taken out while it works on the rest of the job.
        let Stage::Working(mut reading) = std::mem::replace(&mut self.stage, Stage::Leaving(0)) else {
            return Ok(Step::Nothing);
        };
        let step = match &mut reading {
            Reading::Registered(work) => work.advance(self, around)?,
            Reading::Staged(staged) => staged.advance(self, around),
        };
        match step {
            Step::Done(_) => {
                if let Some(peer) = around.peers().find(|peer| self.was_left_by(around, *peer)) {
                    return Ok(self.spoil(peer));
                }
                around.mine().board().set_count(Counter::Finished, self.lane, self.round, 1);
                around.nudge_all();
                Ok(Step::Moved(1))
            }
            step => {
                self.stage = Stage::Working(reading);
                Ok(if matches!(step, Step::Moved(0)) { Step::Nothing } else { step })
            }
        }
    }

    pub(super) fn root(&self) -> usize {
        self.label.fingerprint.root.map_or(0, |root| root as usize)
    }

    fn mismatch(&self, around: &Surroundings, rank: usize, notice: &Notice<'_, Segment>) -> Error {
        let peer = around.health.peers()[rank].clone();
        match notice.label() {
            Some(theirs) => self.label.mismatch(theirs.fingerprint, peer),
            None => nonsense(around, rank),
        }
    }

    pub(super) fn missing(&self, around: &Surroundings) -> Vec<usize> {
        let waits = |peer: &usize| {
            let board = around.segments[*peer].board();
            match self.stage {
                Stage::Spoiled(by) => *peer == by,
                Stage::Arriving(_) => board.read(self.lane, self.round).is_none(),
                Stage::Working(_) | Stage::Leaving(_) => !self.has_finished(around, *peer),
            }
        };
        around.peers().filter(waits).collect()
    }

    /// The result of a small operation, from what everyone has posted.
    fn compute(&mut self, around: &Surroundings) {
        let Fingerprint { operation, dtype, .. } = self.label.fingerprint;
        let (ranks, rank, root) = (around.size(), around.rank, self.root());
        let (lane, round) = (self.lane, self.round);
        let posted = |rank: usize| {
            let notice = around.segments[rank].board().read(lane, round);
            notice.map_or(SharedBytes::of(&GONE), |notice| notice.payload())
        };
        let combination = |owner| combination(&self.label.fingerprint, around, owner);
        let output = self.output.bytes_mut();
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

/// The error of a peer that does not keep to the board's rules.
fn nonsense(around: &Surroundings, rank: usize) -> Error {
    let peer = &around.health.peers()[rank];
    Error::usage(format!("{peer} wrote nonsense on its board"), "use the same build everywhere")
}
