//! PyTorch's `DistributedSampler`: divides the samples of an epoch evenly among ranks.
//!
//! Source: `torch/utils/data/distributed.py`.

use crate::error::SamplerError;
use crate::ranks::{check_ranks, for_rank, warn_if_nothing};
use crate::rng::{DrawnOrder, Mersenne};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of a [`DistributedSampler`]. The defaults are those of PyTorch: shuffled, seed 0, no dropped samples.
///
/// All options but `rank` must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistributedOptions {
    /// Number of samples in the data set.
    pub len: usize,
    /// Number of ranks that share the data set. No default; `..comm.sampling()` sets it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// True if an epoch has a random order; otherwise samples come in the order of the data set.
    pub shuffle: bool,
    /// Seed of the order; `epoch` is added to it, and only the low 32 bits of the sum count.
    pub seed: u64,
    /// Number of the first epoch; see [`Sampler::set_epoch`].
    pub epoch: u64,
    /// True to drop the last samples of the order if the ranks cannot have equal numbers; false to repeat the first
    /// ones.
    pub drop_last: bool,
    /// True to draw every sample exactly once, so that some ranks draw one more than others. For evaluation: in
    /// training, a rank with an additional step would wait forever for the others.
    pub exact: bool,
}

for_rank!(DistributedOptions);

impl Default for DistributedOptions {
    fn default() -> Self {
        DistributedOptions {
            len: 0,
            replicas: 0,
            rank: 0,
            shuffle: true,
            seed: 0,
            epoch: 0,
            drop_last: false,
            exact: false,
        }
    }
}

/// The share of one rank in every epoch, equal to PyTorch's `DistributedSampler` index for index.
///
/// Rank `r` of `R` takes positions `r, r + R, r + 2R, …` of the order of the epoch. That order is first cut
/// (`drop_last`), or extended with samples from its beginning, repeatedly if necessary, until all ranks have the same
/// number.
///
/// Deterministic: the order depends on the options and the epoch only, so that ranks do not communicate. It does not
/// depend on the number of ranks: [`iter_from`](Sampler::iter_from) a position divides the remaining samples among
/// the current number of ranks.
///
/// ```
/// use hexagram_sampler::{DistributedOptions, DistributedSampler};
///
/// let of = |rank| DistributedSampler::new(DistributedOptions {
///     len: 5, replicas: 2, rank, shuffle: false, ..Default::default()
/// });
/// assert_eq!(of(0)?.indices(), [0, 2, 4]);
/// assert_eq!(of(1)?.indices(), [1, 3, 0]); // sample 0 comes twice, so that ranks have equally many
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedSampler {
    options: DistributedOptions,
}

impl DistributedSampler {
    /// Creates the sampler.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the number of replicas is not set, if `rank` is not below it, if `drop_last` and `exact`
    /// are both set, or if the positions of an epoch exceed the address space. Without samples, or if `drop_last`
    /// drops all, ranks draw no samples, as in PyTorch, and a warning reports it.
    pub fn new(options: DistributedOptions) -> Result<Self, SamplerError> {
        let DistributedOptions { len, replicas, rank, drop_last, exact, .. } = options;
        check_ranks(len, rank, replicas, replicas)?;
        if drop_last && exact {
            return Err(SamplerError::Contradiction { one: "drop_last", other: "exact" });
        }
        let sampler = DistributedSampler { options };
        warn_if_nothing(rank, len, if drop_last { replicas } else { 1 });
        Ok(sampler)
    }

    /// Returns the number of samples of this rank in an epoch: the same number on every rank, unless `exact`.
    pub fn len(&self) -> usize {
        self.share(0)
    }

    /// Returns true if this rank has no samples, which happens with `exact` and fewer samples than ranks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets the epoch whose order [`indices`](Self::indices) returns. Call it before each epoch, on every rank;
    /// otherwise all epochs have the same order.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.options.epoch = epoch;
    }

    /// Returns the samples of this rank in the current epoch, in the order to train on them.
    ///
    /// A shuffled epoch first draws the order of the whole data set: `4 len` bytes (`8 len` from 2^32 samples on),
    /// and time proportional to `len`.
    pub fn indices(&self) -> Vec<usize> {
        self.iter().collect()
    }

    /// Returns the number of samples of this rank from `position` on.
    fn share(&self, position: usize) -> usize {
        let DistributedOptions { len, replicas, rank, drop_last, exact, .. } = self.options;
        let left = len.saturating_sub(position);
        match (drop_last, exact) {
            (true, _) => left / replicas,
            (false, false) => left.div_ceil(replicas),
            (false, true) => left.saturating_sub(rank).div_ceil(replicas),
        }
    }
}

impl Sampler for DistributedSampler {
    type Item = usize;

    fn len(&self) -> usize {
        self.share(0)
    }

    fn epoch(&self) -> u64 {
        self.options.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.options.epoch = epoch;
    }

    fn stride(&self) -> usize {
        self.options.replicas
    }

    fn fingerprint(&self) -> u64 {
        let DistributedOptions { len, shuffle, seed, .. } = self.options;
        fingerprint("distributed", [len as u64, shuffle.into(), if shuffle { seed } else { 0 }])
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        let DistributedOptions { len, replicas, rank, shuffle, seed, epoch, .. } = self.options;
        let mine = (0..self.share(position)).map(move |draw| (position + rank + draw * replicas) % len);
        if !shuffle {
            return Box::new(mine);
        }
        let order = DrawnOrder::drawn(len, &mut Mersenne::new(seed.wrapping_add(epoch)));
        Box::new(mine.map(move |position| order.at(position)))
    }
}
