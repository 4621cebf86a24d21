//! Divides the order of any single-rank sampler among ranks, for instance weighted draws, or draws with replacement.
//!
//! ```text
//! order    what the sampler draws in the epoch, the same on every rank
//! rank r   of R: its positions r, r + R, r + 2R, …; the tail is dropped, padded from the beginning, or drawn unevenly
//! ```
//!
//! Requested for `WeightedRandomSampler` in pytorch#77154.

use crate::error::SamplerError;
use crate::ranks::{Tail, check_ranks, for_rank, warn_if_nothing};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of a [`ShardedSampler`].
///
/// All options but `rank` must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardedOptions {
    /// Number of ranks that share the order. No default; `..comm.sampling()` sets it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Treatment of the remaining draws, if the order is not a whole number of steps.
    pub tail: Tail,
}

for_rank!(ShardedOptions);

/// The share of one rank in every epoch of a sampler that all ranks create alike, with the same seed.
///
/// An epoch first draws the order of all ranks, in time and memory proportional to its length. Deterministic if that
/// sampler is; [`iter_from`](Sampler::iter_from) a position divides the remaining draws among the current number of
/// ranks.
///
/// ```
/// use hexagram_sampler::{Sampler, ShardedOptions, ShardedSampler, WeightedOptions, WeightedRandomSampler};
///
/// let of = |rank| {
///     let weights = WeightedOptions { weights: vec![1.0, 3.0], num_samples: 10, ..Default::default() };
///     let order = WeightedRandomSampler::new(weights)?;
///     ShardedSampler::new(order, ShardedOptions { replicas: 2, rank, ..Default::default() })
/// };
/// assert_eq!((of(0)?.len(), of(1)?.len()), (5, 5));
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ShardedSampler<S> {
    sampler: S,
    options: ShardedOptions,
}

impl<S: Sampler<Item = usize>> ShardedSampler<S> {
    /// Divides the order of `sampler` among the ranks. If the whole order is a dropped tail, ranks draw no samples,
    /// and a warning reports it.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the number of replicas is not set, or `rank` is not below it.
    pub fn new(sampler: S, options: ShardedOptions) -> Result<Self, SamplerError> {
        let ShardedOptions { replicas, rank, tail } = options;
        check_ranks(sampler.len(), rank, replicas, replicas)?;
        warn_if_nothing(rank, sampler.len(), if tail == Tail::Drop { replicas } else { 1 });
        Ok(ShardedSampler { sampler, options })
    }

    /// Returns the number of draws of this rank from `position` on.
    fn share(&self, position: usize) -> usize {
        let ShardedOptions { replicas, rank, tail } = self.options;
        tail.left(self.sampler.len(), position, replicas).saturating_sub(rank).div_ceil(replicas)
    }
}

impl<S: Sampler<Item = usize>> Sampler for ShardedSampler<S> {
    type Item = usize;

    fn len(&self) -> usize {
        self.share(0)
    }

    fn epoch(&self) -> u64 {
        self.sampler.epoch()
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.sampler.set_epoch(epoch);
    }

    fn stride(&self) -> usize {
        self.options.replicas
    }

    /// Returns a fingerprint with the grouping of the inner sampler. Its parts are not supported, so its grouping must not
    /// change in the middle of an epoch.
    fn fingerprint(&self) -> u64 {
        // A grouping of 1 is left out: the fingerprint of older checkpoints.
        let grouping = Some(self.sampler.grouping()).filter(|grouping| *grouping != 1);
        let words = [self.sampler.fingerprint()].into_iter().chain(grouping.map(|grouping| grouping as u64));
        fingerprint("sharded", words)
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        let ShardedOptions { replicas, rank, .. } = self.options;
        let order: Vec<usize> = self.sampler.iter().collect();
        let places = (0..self.share(position)).map(move |draw| position + rank + draw * replicas);
        Box::new(places.map(move |place| order[place % order.len()]))
    }
}
