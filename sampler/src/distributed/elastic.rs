//! Batches whose samples do not depend on the number of ranks: a job may stop on four ranks and continue with three.
//! Also the sampler for data sets of billions of samples, and for evaluation.
//!
//! ```text
//! order    a keyed permutation of all samples, or their own order
//! step s   the order's positions from s B up to (s + 1) B, for a global batch of B
//! rank r   of R: an equal, contiguous part of the step; the first B mod R ranks have one more
//! ```
//!
//! Source: the idea is MosaicML Streaming's elastic determinism, without its divisibility conditions.

use crate::error::SamplerError;
use crate::ranks::{Tail, check_dropping, check_ranks, check_samples, for_rank};
use crate::rng::KeyedPermutation;
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of an [`ElasticSampler`].
///
/// All options but `rank` must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElasticOptions {
    /// Number of samples in the data set.
    pub len: usize,
    /// Number of ranks that share the data set. No default; `..comm.sampling()` sets it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of samples in one step, over all ranks; at least one per rank.
    pub global_batch: usize,
    /// True if an epoch has a random order; otherwise samples come in the order of the data set.
    pub shuffle: bool,
    /// Seed of the order, together with `epoch`.
    pub seed: u64,
    /// Number of the first epoch.
    pub epoch: u64,
    /// Treatment of the samples that do not fill a step.
    pub tail: Tail,
}

for_rank!(ElasticOptions);

impl Default for ElasticOptions {
    fn default() -> Self {
        ElasticOptions {
            len: 0,
            replicas: 0,
            rank: 0,
            global_batch: 1,
            shuffle: true,
            seed: 0,
            epoch: 0,
            tail: Tail::Drop,
        }
    }
}

/// The batches of one rank, from an order that is the same for any number of ranks, and takes no memory.
///
/// Batches of different ranks differ by at most one sample: weigh each rank by its number of samples in an average.
/// All ranks have the same number of batches, except with [`Tail::Exact`].
///
/// Deterministic: in each step, the ranks together see the same samples in the same order, for any number of ranks,
/// also if a run continues in the middle of an epoch with a different number.
///
/// ```
/// use hexagram_sampler::{ElasticOptions, ElasticSampler, Sampler};
///
/// let of = |replicas, rank| ElasticSampler::new(ElasticOptions {
///     len: 10, replicas, rank, global_batch: 5, shuffle: false, ..Default::default()
/// });
/// assert_eq!(of(1, 0)?.iter().collect::<Vec<_>>(), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]);
/// assert_eq!(of(2, 0)?.iter().collect::<Vec<_>>(), [[0, 1, 2], [5, 6, 7]]);
/// assert_eq!(of(2, 1)?.iter().collect::<Vec<_>>(), [[3, 4], [8, 9]]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElasticSampler {
    options: ElasticOptions,
}

impl ElasticSampler {
    /// Creates the sampler.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the number of samples or replicas is 0, `rank` is not below the number of replicas, a step
    /// has fewer samples than ranks, or [`Tail::Drop`] would drop all samples.
    pub fn new(options: ElasticOptions) -> Result<Self, SamplerError> {
        let ElasticOptions { len, replicas, rank, global_batch, tail, .. } = options;
        check_ranks(len, rank, replicas, global_batch)?;
        check_samples(len)?;
        check_step(len, replicas, global_batch, tail)?;
        Ok(ElasticSampler { options })
    }

    /// Returns the number of batches of this rank from `position` on: one per full step, and possibly one of the
    /// rest.
    fn batches(&self, position: usize) -> usize {
        let ElasticOptions { len, rank, global_batch, tail, .. } = self.options;
        let left = tail.left(len, position, global_batch);
        left / global_batch + usize::from(rank < left % global_batch)
    }
}

/// Checks that every rank has a sample in every step, and that there is at least one step.
pub(crate) fn check_step(
    len: usize,
    replicas: usize,
    global_batch: usize,
    tail: Tail,
) -> Result<(), SamplerError> {
    if global_batch < replicas {
        return Err(SamplerError::SmallBatch { global_batch, replicas });
    }
    if tail == Tail::Drop { check_dropping(len, global_batch) } else { Ok(()) }
}

/// Returns the share of `count` items that a rank has.
fn part(count: usize, rank: usize, replicas: usize) -> std::ops::Range<usize> {
    let begin = |rank: usize| rank * (count / replicas) + rank.min(count % replicas);
    begin(rank)..begin(rank + 1)
}

impl Sampler for ElasticSampler {
    type Item = Vec<usize>;

    fn len(&self) -> usize {
        self.batches(0)
    }

    fn epoch(&self) -> u64 {
        self.options.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.options.epoch = epoch;
    }

    fn stride(&self) -> usize {
        self.options.global_batch
    }

    fn fingerprint(&self) -> u64 {
        let ElasticOptions { len, shuffle, seed, .. } = self.options;
        fingerprint("elastic", [len as u64, shuffle.into(), if shuffle { seed } else { 0 }])
    }

    fn iter_from(&self, position: usize) -> Draws<Vec<usize>> {
        let ElasticOptions { len, replicas, rank, global_batch, shuffle, seed, epoch, tail } = self.options;
        let order = KeyedPermutation::new(len, seed, epoch);
        let end = position + tail.left(len, position, global_batch);
        Box::new((0..self.batches(position)).map(move |step| {
            let begin = position + step * global_batch;
            let mine = part(global_batch.min(end - begin), rank, replicas);
            let sample = |place: usize| if shuffle { order.at(place) } else { place % len };
            mine.map(|place| sample(begin + place)).collect()
        }))
    }
}
