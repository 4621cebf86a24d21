//! Plan of batches: the order of an epoch, from a sampler, or round-robin over the passes of an iterable dataset.

use super::error::LoaderError;
use super::worker::FetchWork;
use crate::parts::{self, EpochPart};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Position of a loader. A run can resume from it with a different number of workers and of ranks.
///
/// Take it after the step of the last trained batch. It is equal on all ranks, and its size does not depend on the data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoaderState {
    /// Seed of the loader.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// Position of all ranks together in the epoch, as in [`Sampler`]; with an iterable dataset, in batches.
    pub position: usize,
    /// Order to which the position belongs: [`Sampler::fingerprint`].
    pub order: u64,
    /// [`Sampler::grouping`] of the ranks that are at this position.
    pub grouping: usize,
    /// Earlier parts of the epoch, drawn with other groupings.
    pub parts: Vec<EpochPart>,
}

impl LoaderState {
    /// Returns the parts of the epoch before the position, for [`Sampler::set_parts`] of a sampler with this grouping.
    ///
    /// # Errors
    ///
    /// [`LoaderError::BadState`] if a grouping is not from 1 to [`u32::MAX`], or if the ends of the parts do not increase, or
    /// exceed the position.
    pub fn parts_before(&self, grouping: usize) -> Result<Vec<EpochPart>, LoaderError> {
        parts::check(&self.parts, self.position, self.grouping)
            .map_err(|what| LoaderError::BadState { what })?;
        let mut parts = self.parts.clone();
        if grouping != self.grouping && self.position > parts::start(&parts) {
            parts.push(EpochPart { grouping: self.grouping, end: self.position });
        }
        Ok(parts)
    }
}

/// Reads the order of one epoch after another.
pub(super) struct EpochPlan {
    source: IndexSource,
    /// See [`LoaderState::order`].
    order: u64,
    /// See [`LoaderState::grouping`].
    grouping: usize,
    epoch: u64,
    position: usize,
    /// The epoch that is resumed, and its earlier parts.
    resumed: (u64, Vec<EpochPart>),
}

enum IndexSource {
    /// Batches of indices.
    Batches {
        sampler: Box<dyn Sampler<Item = Vec<usize>>>,
        /// Remaining batches of the epoch, once it has begun.
        draws: Option<Draws<Vec<usize>>>,
    },
    /// Batches of the next items.
    Passes {
        batch: usize,
        /// For each worker, true if its part of this epoch has ended.
        ended: Vec<bool>,
        /// Worker with the next turn.
        turn: usize,
    },
}

/// A batch to make, its worker (for an iterable dataset), and the position of the epoch after it.
pub(super) struct NextBatch {
    pub(super) work: FetchWork,
    pub(super) lane: usize,
    pub(super) end: usize,
}

impl EpochPlan {
    pub(super) fn batches(sampler: Box<dyn Sampler<Item = Vec<usize>>>) -> Self {
        // Called once, because it may read the cost of every sample.
        let (order, grouping, epoch) = (sampler.fingerprint(), sampler.grouping(), sampler.epoch());
        Self::new(IndexSource::Batches { sampler, draws: None }, (order, grouping), epoch)
    }

    fn new(source: IndexSource, (order, grouping): (u64, usize), epoch: u64) -> Self {
        EpochPlan { source, order, grouping, epoch, position: 0, resumed: (epoch, Vec::new()) }
    }

    pub(super) fn passes(batch: usize, workers: usize, drop_last: bool) -> Self {
        let ended = vec![false; workers.max(1)];
        // The batches depend on the number of workers, and on whether each drops its last one.
        let order = fingerprint("iterable", [batch as u64, ended.len() as u64, drop_last.into()]);
        Self::new(IndexSource::Passes { batch, ended, turn: 0 }, (order, 1), 0)
    }

    /// Returns the number of task queues: one for all workers, or one each.
    pub(super) fn lanes(&self) -> usize {
        match &self.source {
            IndexSource::Batches { .. } => 1,
            IndexSource::Passes { ended, .. } => ended.len(),
        }
    }

    /// Returns the number of batches in the current epoch, if that is known.
    pub(super) fn len(&self) -> Option<usize> {
        match &self.source {
            IndexSource::Batches { sampler, .. } => Some(sampler.len()),
            IndexSource::Passes { .. } => None,
        }
    }

    /// Returns the epoch being planned.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the state at a position of an epoch, of a loader with this seed.
    pub(super) fn state(&self, seed: u64, (epoch, position): (u64, usize)) -> LoaderState {
        let parts = self.parts(epoch).to_vec();
        LoaderState { seed, epoch, position, order: self.order, grouping: self.grouping, parts }
    }

    /// Prepares [`begin`](Self::begin) to continue the epoch of a state at its position.
    ///
    /// # Errors
    ///
    /// [`LoaderError::BadState`] if the state contradicts itself.
    pub(super) fn resume(&mut self, state: &LoaderState) -> Result<(), LoaderError> {
        self.resumed = (state.epoch, state.parts_before(self.grouping)?);
        Ok(())
    }

    /// Returns the earlier parts of an epoch.
    fn parts(&self, epoch: u64) -> &[EpochPart] {
        if epoch == self.resumed.0 { &self.resumed.1 } else { &[] }
    }

    /// Returns true if an epoch can only be entered at its beginning, so that earlier batches must be made again and
    /// dropped. This holds for an iterable dataset, whose positions count batches.
    pub(super) fn replays(&self) -> bool {
        matches!(self.source, IndexSource::Passes { .. })
    }

    /// Goes to a position of an epoch.
    pub(super) fn begin(&mut self, epoch: u64, position: usize) {
        self.epoch = epoch;
        self.position = position;
        if position == 0 && epoch == self.resumed.0 {
            self.resumed.1.clear();
        }
        let parts = self.parts(epoch).to_vec();
        match &mut self.source {
            IndexSource::Batches { sampler, draws } => {
                sampler.set_epoch(epoch);
                sampler.set_parts(&parts);
                *draws = Some(sampler.iter_from(position));
            }
            IndexSource::Passes { ended, turn, .. } => {
                ended.fill(false);
                *turn = 0;
                self.position = 0;
            }
        }
    }

    /// Returns the next batch of the epoch, if there is one.
    pub(super) fn next(&mut self) -> Option<NextBatch> {
        let (work, lane, step) = match &mut self.source {
            IndexSource::Batches { sampler, draws } => {
                (FetchWork::Samples(draws.as_mut()?.next()?), 0, sampler.stride())
            }
            IndexSource::Passes { batch, ended, turn } => {
                let lanes = ended.len();
                let lane = (0..lanes).map(|ahead| (*turn + ahead) % lanes).find(|lane| !ended[*lane])?;
                *turn = (lane + 1) % lanes;
                (FetchWork::Next(*batch), lane, 1)
            }
        };
        self.position = self.position.saturating_add(step);
        Some(NextBatch { work, lane, end: self.position })
    }

    /// Records that the part of a worker in an epoch has ended.
    pub(super) fn exhausted(&mut self, epoch: u64, lane: usize) {
        if let (IndexSource::Passes { ended, .. }, true) = (&mut self.source, epoch == self.epoch) {
            ended[lane] = true;
        }
    }

    /// Returns true if the epoch has no more batches to plan. Does not call the dataset.
    pub(super) fn has_ended(&self) -> bool {
        match &self.source {
            IndexSource::Batches { draws, .. } => draws.as_ref().is_none_or(|draws| draws.len() == 0),
            IndexSource::Passes { ended, .. } => ended.iter().all(|ended| *ended),
        }
    }
}
