//! One native collective under way: what it posts, whom it waits for, and the work between.

use super::arrival::{Arrival, Checked, nonsense, prepare};
use super::board::{Counter, PAYLOAD};
use super::collectives::Surroundings;
use super::staged::Staged;
use super::work::{Source, Work};
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use crate::transport::Label;

/// What an attempt to go on has brought.
pub(super) enum Step {
    Nothing,
    /// So many bytes were worked on.
    Moved(usize),
    /// Everything; the output has so many bytes.
    Done(usize),
}

enum Stage {
    /// Waiting until everyone has begun.
    Arriving,
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

pub(super) struct Job {
    pub(super) arrival: Arrival,
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
    ) -> Self {
        let registration = input.as_ref().map_or_else(|| output.registration(), ReadView::registration);
        let small = input.as_ref().map_or(output.bytes().len(), |input| input.bytes().len()) <= PAYLOAD;
        label.fingerprint.registered = !small && around.regions.knows(registration.map(|(which, _)| which));
        prepare(around, &label.fingerprint, output.bytes_mut());
        let source;
        let payload = match registration {
            _ if small => {
                let bytes = input.as_ref().map_or_else(|| output.bytes(), ReadView::bytes);
                Arrival::payload(around, &label, bytes)
            }
            Some((registration, offset)) => {
                source = Source { index: registration.index, offset }.to_bytes();
                &source
            }
            None => &[],
        };
        let arrival = Arrival::post(around, lane, round, label, payload);
        Job { arrival, input, output, stage: Stage::Arriving }
    }

    /// Goes on with a small operation in place, for which this rank has posted already.
    pub(super) fn resume(arrival: Arrival, output: WriteView) -> Self {
        Job { arrival, input: None, output, stage: Stage::Arriving }
    }

    pub(super) fn is_arriving(&self) -> bool {
        matches!(self.stage, Stage::Arriving)
    }

    pub(super) fn advance(&mut self, around: &Surroundings) -> Result<Step> {
        match self.stage {
            Stage::Arriving => self.arrive(around),
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

    /// Gives the operation up: see [`Arrival::withdraw`].
    pub(super) fn withdraw(self, around: &Surroundings) {
        self.arrival.withdraw(around);
    }

    /// Bytes of what each rank contributes.
    fn bytes(&self) -> usize {
        self.input.as_ref().map_or(self.output.bytes().len(), |input| input.bytes().len())
    }

    fn has_finished(&self, around: &Surroundings, peer: usize) -> bool {
        around.segments[peer].board().count(Counter::Finished, self.arrival.lane, self.arrival.round) > 0
    }

    fn done(&self) -> Step {
        Step::Done(self.output.bytes().len())
    }

    fn arrive(&mut self, around: &Surroundings) -> Result<Step> {
        if !self.arrival.is_complete(around)? {
            return Ok(Step::Nothing);
        }
        self.stage = Stage::Working(if self.arrival.label.fingerprint.registered {
            let source = |rank| self.arrival.notice(around, rank).map(|notice| Source::of(&notice));
            let source = |rank| source(rank).ok_or_else(|| nonsense(around, rank));
            let sources = (0..around.size()).map(source).collect::<Result<_>>()?;
            Reading::Registered(Work::new(sources, around))
        } else if self.bytes() > PAYLOAD {
            Reading::Staged(Staged::default())
        } else {
            return Ok(match self.arrival.finish(around, self.output.bytes_mut())? {
                Checked::Good => self.done(),
                Checked::LeftBy(peer) => self.spoil(peer),
            });
        });
        self.work(around)
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
                if let Some(peer) = around.peers().find(|peer| self.arrival.was_left_by(around, *peer)) {
                    return Ok(self.spoil(peer));
                }
                around.mine().board().set_count(Counter::Finished, self.arrival.lane, self.arrival.round, 1);
                around.nudge_all();
                Ok(Step::Moved(1))
            }
            step => {
                self.stage = Stage::Working(reading);
                Ok(if matches!(step, Step::Moved(0)) { Step::Nothing } else { step })
            }
        }
    }

    pub(super) fn missing(&self, around: &Surroundings) -> Vec<usize> {
        let waits = |peer: &usize| {
            let board = around.segments[*peer].board();
            match self.stage {
                Stage::Spoiled(by) => *peer == by,
                Stage::Arriving => board.read(self.arrival.lane, self.arrival.round).is_none(),
                Stage::Working(_) | Stage::Leaving(_) => !self.has_finished(around, *peer),
            }
        };
        around.peers().filter(waits).collect()
    }
}
