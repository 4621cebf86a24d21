//! All-reduce of memory that is not registered: the same reading of the peers' bytes, but from a stage in each rank's
//! segment, to which every rank copies what the others need. The stage is small and stays in the shared cache.
//!
//! ```text
//! stage = half half
//! half  = block × ranks        block p: this rank's contribution to a piece of chunk p; block r: the result for chunk r
//! ```
//!
//! Round j uses half j mod 2. With the counters of the board a block is written again only when nobody reads it any more:
//!
//! | step of round j | when |
//! |---|---|
//! | stage: copy the contributions | everyone has reduced round j − 2 |
//! | reduce this rank's piece, copy the result to the stage | everyone has staged round j, and gathered round j − 2 |
//! | gather the peers' results | they have reduced round j |

use super::board::Counter;
use super::collectives::Surroundings;
use super::job::{Job, Step};
use super::shape::Shape;
use super::work::{combination, scaled};
use crate::native::chunk;
use std::ops::Range;

/// How far this rank is, in rounds.
#[derive(Default)]
pub(super) struct Staged {
    staged: u32,
    reduced: u32,
    gathered: u32,
}

/// The division of an operation into rounds.
struct Plan {
    shape: Shape,
    /// Bytes of an element.
    size: usize,
    /// Elements.
    len: usize,
}

impl Plan {
    fn new(job: &Job, around: &Surroundings) -> Self {
        let size = job.arrival.label.fingerprint.dtype.size();
        Plan { shape: around.mine().shape(), size, len: job.output.bytes().len() / size }
    }

    fn rounds(&self) -> u32 {
        let chunk = self.len.div_ceil(self.shape.ranks).saturating_mul(self.size);
        chunk.div_ceil(self.shape.block) as u32
    }

    /// What round `round` has of chunk `owner`: its bytes in the buffer.
    fn piece(&self, owner: usize, round: u32) -> Range<usize> {
        let Range { start, end } = scaled(chunk(self.len, self.shape.ranks, owner), self.size);
        let start = end.min(start + round as usize * self.shape.block);
        start..end.min(start + self.shape.block)
    }

    /// Where block `index` of round `round` begins on a stage.
    fn place(&self, round: u32, index: usize) -> usize {
        (round % 2) as usize * self.shape.half() + index * self.shape.block
    }
}

impl Staged {
    /// Whether a stage of this shape has room for every rank.
    pub(super) fn fits(shape: &Shape) -> bool {
        shape.block > 0
    }

    /// Does the next steps. `Moved(0)` when only peers can help, `Done` when nothing is left.
    pub(super) fn advance(&mut self, job: &mut Job, around: &Surroundings) -> Step {
        let plan = Plan::new(job, around);
        let lane = job.arrival.lane;
        let round = job.arrival.round;
        let everyone = |counter, rounds: u32| {
            let board = |peer: usize| around.segments[peer].board();
            around.peers().all(|peer| board(peer).count(counter, lane, round) >= rounds)
        };
        let mut moved = 0;
        let staged = self.staged;
        let reduced = self.reduced;
        let gathered = self.gathered;
        if staged < plan.rounds() && everyone(Counter::Reduced, staged.saturating_sub(1)) {
            moved += self.stage(&plan, job, around);
        }
        if reduced < self.staged
            && everyone(Counter::Staged, reduced + 1)
            && everyone(Counter::Gathered, reduced.saturating_sub(1))
        {
            moved += self.reduce(&plan, job, around);
        }
        if gathered < plan.rounds() && everyone(Counter::Reduced, gathered + 1) {
            moved += self.gather(&plan, job, around);
        }
        if self.reduced.min(self.gathered) == plan.rounds() { Step::Done(0) } else { Step::Moved(moved) }
    }

    fn stage(&mut self, plan: &Plan, job: &Job, around: &Surroundings) -> usize {
        let mut moved = 1;
        for peer in around.peers() {
            let piece = plan.piece(peer, self.staged);
            moved += piece.len();
            let place = plan.place(self.staged, peer);
            around.mine().stage_store(place, &job.output.bytes()[piece]);
        }
        self.staged += 1;
        self.publish(Counter::Staged, self.staged, job, around);
        moved
    }

    fn reduce(&mut self, plan: &Plan, job: &mut Job, around: &Surroundings) -> usize {
        let rank = around.rank;
        let round = self.reduced;
        let piece = plan.piece(rank, round);
        let place = plan.place(round, rank);
        let there = |peer: usize| around.segments[peer].stage_bytes(place, piece.len());
        around.traffic.read((plan.shape.ranks - 1) * piece.len());
        let to = &mut job.output.bytes_mut()[piece.clone()];
        combination(&job.arrival.label.fingerprint, around, rank).add(there, to);
        around.mine().stage_store(place, to);
        self.reduced += 1;
        self.publish(Counter::Reduced, self.reduced, job, around);
        piece.len() + 1
    }

    fn gather(&mut self, plan: &Plan, job: &mut Job, around: &Surroundings) -> usize {
        let mut moved = 1;
        for peer in around.peers() {
            let piece = plan.piece(peer, self.gathered);
            let from = around.segments[peer].stage_bytes(plan.place(self.gathered, peer), piece.len());
            around.traffic.read(piece.len());
            moved += piece.len();
            from.load(&mut job.output.bytes_mut()[piece]);
        }
        self.gathered += 1;
        self.publish(Counter::Gathered, self.gathered, job, around);
        moved
    }

    fn publish(&self, counter: Counter, value: u32, job: &Job, around: &Surroundings) {
        around.mine().board().set_count(counter, job.arrival.lane, job.arrival.round, value);
        around.nudge_all();
    }
}
