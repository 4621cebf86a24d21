//! All-reduce of memory that is not registered. Peers read in the same way, but from a stage in the segment of each
//! rank, to which every rank copies the data for the others. The stage is small and stays in the shared cache.
//!
//! ```text
//! stage = half half
//! half  = block × ranks        block p: this rank's contribution to a piece of chunk p; block r: the result for chunk r
//! ```
//!
//! Round j uses half j mod 2. The counters of the control block guarantee that a block is overwritten only when no
//! rank reads it any more:
//!
//! | step of round j | condition |
//! |---|---|
//! | stage: copy the contributions | all ranks have reduced round j − 2 |
//! | reduce this rank's piece, copy the result to the stage | all ranks have staged round j, and gathered round j − 2 |
//! | gather the peers' results | they have reduced round j |

use super::ShmContext;
use super::running::{RunningCollective, StepOutcome};
use crate::backends::shm::control_block::Counter;
use crate::backends::shm::segment::registered::{ordered_reduction, scaled};
use crate::backends::shm::segment::shape::SegmentShape;
use crate::transport::native::chunk;
use std::ops::Range;

/// Progress of this rank, in rounds.
#[derive(Default)]
pub(crate) struct StagedTransfer {
    staged: u32,
    reduced: u32,
    gathered: u32,
}

/// Division of an operation into rounds.
struct RoundSchedule {
    shape: SegmentShape,
    /// Bytes of an element.
    size: usize,
    /// Number of elements.
    len: usize,
}

impl RoundSchedule {
    /// Divides the operation by the shape of the segments.
    fn new(running: &RunningCollective, context: &ShmContext) -> Self {
        let size = running.entry.label.fingerprint.dtype.size();
        RoundSchedule { shape: context.mine().shape(), size, len: running.output.byte_len() / size }
    }

    /// Returns the number of rounds.
    fn count(&self) -> u32 {
        let chunk = self.len.div_ceil(self.shape.ranks).saturating_mul(self.size);
        chunk.div_ceil(self.shape.block) as u32
    }

    /// Returns the bytes of chunk `owner` that belong to round `round`.
    fn piece(&self, owner: usize, round: u32) -> Range<usize> {
        let Range { start, end } = scaled(chunk(self.len, self.shape.ranks, owner), self.size);
        let start = end.min(start + round as usize * self.shape.block);
        start..end.min(start + self.shape.block)
    }

    /// Returns the offset of block `index` of round `round` on a stage.
    fn place(&self, round: u32, index: usize) -> usize {
        (round % 2) as usize * self.shape.half() + index * self.shape.block
    }
}

impl StagedTransfer {
    /// Returns true if a stage of this shape has a block for every rank.
    pub(crate) fn fits(shape: &SegmentShape) -> bool {
        shape.block > 0
    }

    /// Performs the next steps. Returns `Moved(0)` if only peers can make progress, `Done` if nothing is left.
    pub(crate) fn advance(&mut self, running: &mut RunningCollective, context: &ShmContext) -> StepOutcome {
        let rounds = RoundSchedule::new(running, context);
        let lane = running.entry.lane;
        let round = running.entry.round;
        let everyone = |counter, rounds: u32| {
            let control_block = |peer: usize| context.segments[peer].control_block();
            context.peers().all(|peer| control_block(peer).progress(counter, lane, round) >= rounds)
        };
        let mut moved = 0;
        let staged = self.staged;
        let reduced = self.reduced;
        let gathered = self.gathered;
        if staged < rounds.count() && everyone(Counter::Reduced, staged.saturating_sub(1)) {
            moved += self.stage(&rounds, running, context);
        }
        if reduced < self.staged
            && everyone(Counter::Staged, reduced + 1)
            && everyone(Counter::Gathered, reduced.saturating_sub(1))
        {
            moved += self.reduce(&rounds, running, context);
        }
        if gathered < rounds.count() && everyone(Counter::Reduced, gathered + 1) {
            moved += self.gather(&rounds, running, context);
        }
        if self.reduced.min(self.gathered) == rounds.count() {
            StepOutcome::Done(0)
        } else {
            StepOutcome::Moved(moved)
        }
    }

    /// Copies the contributions of the next round to the stage.
    fn stage(&mut self, rounds: &RoundSchedule, running: &RunningCollective, context: &ShmContext) -> usize {
        let mut moved = 1;
        for peer in context.peers() {
            let piece = rounds.piece(peer, self.staged);
            moved += piece.len();
            let place = rounds.place(self.staged, peer);
            context.mine().stage_store(place, &running.output.bytes()[piece]);
        }
        self.staged += 1;
        self.publish_progress(Counter::Staged, self.staged, running, context);
        moved
    }

    /// Reduces this rank's piece of the next round into the buffer and onto the stage.
    fn reduce(
        &mut self,
        rounds: &RoundSchedule,
        running: &mut RunningCollective,
        context: &ShmContext,
    ) -> usize {
        let rank = context.rank;
        let round = self.reduced;
        let piece = rounds.piece(rank, round);
        let place = rounds.place(round, rank);
        let there = |peer: usize| context.segments[peer].stage_bytes(place, piece.len());
        context.traffic.read((rounds.shape.ranks - 1) * piece.len());
        let to = &mut running.output.bytes_mut()[piece.clone()];
        ordered_reduction(&running.entry.label.fingerprint, context, rank).add(there, to);
        context.mine().stage_store(place, to);
        self.reduced += 1;
        self.publish_progress(Counter::Reduced, self.reduced, running, context);
        piece.len() + 1
    }

    /// Copies the peers' results of the next round.
    fn gather(
        &mut self,
        rounds: &RoundSchedule,
        running: &mut RunningCollective,
        context: &ShmContext,
    ) -> usize {
        let mut moved = 1;
        for peer in context.peers() {
            let piece = rounds.piece(peer, self.gathered);
            let from = context.segments[peer].stage_bytes(rounds.place(self.gathered, peer), piece.len());
            context.traffic.read(piece.len());
            moved += piece.len();
            from.load(&mut running.output.bytes_mut()[piece]);
        }
        self.gathered += 1;
        self.publish_progress(Counter::Gathered, self.gathered, running, context);
        moved
    }

    /// Publishes a counter and wakes parked peers.
    fn publish_progress(
        &self,
        counter: Counter,
        value: u32,
        running: &RunningCollective,
        context: &ShmContext,
    ) {
        context.mine().control_block().set_progress(counter, running.entry.lane, running.entry.round, value);
        context.unpark_peers();
    }
}
