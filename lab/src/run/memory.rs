//! The memory of a rank of an elastic job: the last steps, for the next generation.

use super::spent::Spent;
use hexagram::algorithms::Snapshots;
use hexagram::{Communicator, ReduceOp, Result};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Number of steps that a change of members may take back, and more.
const MOST_TAKEN_BACK: u64 = 64;

/// The last steps of this rank.
#[derive(Debug, Default)]
pub(super) struct RunMemory {
    /// The state after the last steps.
    pub(super) snapshots: Snapshots,
    /// Steps of the current epoch and of those to which a change may take back, in order.
    steps: Vec<TrainedStep>,
    began: Option<Instant>,
}

/// A step of this rank.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TrainedStep {
    /// Number of the epoch, from 0.
    pub(super) epoch: u64,
    /// Number of the step, counted through the whole run.
    pub(super) step: u64,
    /// Loss of the batch.
    pub(super) loss: f64,
    /// Tokens of the batch; 1 if all samples cost the same.
    pub(super) tokens: f64,
    /// Time from the beginning of the run.
    pub(super) ended: Duration,
    /// Metrics of the algorithm.
    pub(super) metrics: BTreeMap<String, f64>,
    /// Time and bytes from the beginning of the epoch.
    pub(super) spent: Spent,
}

impl RunMemory {
    /// Returns when the run began, in the first generation of this rank.
    pub(super) fn began(&mut self) -> Instant {
        *self.began.get_or_insert_with(Instant::now)
    }

    /// Adds a step.
    pub(super) fn push(&mut self, step: TrainedStep) {
        self.steps.push(step);
    }

    /// Forgets the epochs before the one that begins, unless a change may take steps of them back.
    pub(super) fn forget(&mut self) {
        let Some(last) = self.steps.last().map(|last| last.step) else { return };
        let oldest = self.steps.iter().find(|own| own.step + MOST_TAKEN_BACK > last).map(|own| own.epoch);
        self.steps.retain(|own| Some(own.epoch) >= oldest);
    }

    /// Returns the steps up to `step` that this rank has made in earlier generations, each with the mean loss of the ranks
    /// that are left. Forgets later ones. A collective call.
    pub(super) fn earlier(&mut self, comm: &Communicator, step: u64) -> Result<Vec<TrainedStep>> {
        self.steps.retain(|own| own.step <= step);
        let mut earlier = self.steps.clone();
        let first = earlier.first().map_or(step + 1, |own| own.step) as i64;
        let mut firsts = vec![0; comm.size()];
        comm.blocking().all_gather(&[first], &mut firsts)?;
        let first = firsts.into_iter().min().unwrap_or(first).clamp(0, step as i64 + 1) as u64;
        let at = |own: &TrainedStep| 2 * (own.step - first) as usize;
        let mut sums = vec![0.0; 2 * (step + 1 - first) as usize];
        if sums.is_empty() {
            return Ok(earlier);
        }
        for own in &earlier {
            sums[at(own)..][..2].copy_from_slice(&[own.loss * own.tokens, own.tokens]);
        }
        comm.blocking().all_reduce(&mut sums, ReduceOp::Sum)?;
        earlier.iter_mut().for_each(|own| own.loss = sums[at(own)] / sums[at(own) + 1]);
        Ok(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram::TransportKind;
    use hexagram::logical::testing::spawn;

    fn step(epoch: u64, step: u64, (loss, tokens): (f64, f64)) -> TrainedStep {
        let (ended, metrics, spent) = Default::default();
        TrainedStep { epoch, step, loss, tokens, ended, metrics, spent }
    }

    #[test]
    fn earlier_steps_have_the_mean_loss_of_the_ranks_that_made_them() {
        let run = |comm: Communicator| {
            let mut memory = RunMemory::default();
            // Rank 0 was there from the beginning, rank 1 joined before step 12, rank 2 is new.
            let first = [11, 12, 14][comm.rank()];
            (first..14).for_each(|at| memory.push(step(1, at, (comm.rank() as f64, 1.0 + at as f64 % 2.0))));
            let earlier = memory.earlier(&comm, 12)?;
            Ok(earlier.into_iter().map(|own| (own.step, own.loss)).collect::<Vec<_>>())
        };
        let earlier = spawn(TransportKind::Thread, 3, run).unwrap();
        assert_eq!(earlier, [vec![(11, 0.0), (12, 0.5)], vec![(12, 0.5)], vec![]]);
    }

    #[test]
    fn steps_of_earlier_epochs_are_forgotten_if_none_of_them_can_come_back() {
        let mut memory = RunMemory::default();
        for (epoch, steps) in [(0, 1..50), (1, 50..100), (2, 100..150)] {
            memory.forget();
            steps.for_each(|at| memory.push(step(epoch, at, (0.0, 1.0))));
        }
        assert_eq!(memory.steps[0].step, 1);
        memory.forget();
        assert_eq!(memory.steps[0].step, 50);
    }
}
