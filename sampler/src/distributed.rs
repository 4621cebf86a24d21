//! PyTorch's `DistributedSampler`: one epoch's samples, divided evenly among ranks. Open this file to see
//! which samples are repeated or left out when the division does not come out even.
//!
//! Source: `torch/utils/data/distributed.py`.

use crate::mersenne::Mersenne;
use crate::permutation::randperm;

/// The most positions an epoch may have: as many as one allocation holds.
const LONGEST: usize = isize::MAX as usize / size_of::<usize>();

/// What a [`DistributedSampler`] is told. Defaults are PyTorch's: one replica, shuffled, seed 0, nothing
/// dropped.
///
/// All ranks must agree on everything but `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistributedOptions {
    /// Samples in the data set.
    pub len: usize,
    /// Ranks that share the data set.
    pub replicas: usize,
    /// Which of them this is, from 0.
    pub rank: usize,
    /// Whether an epoch has a random order; otherwise samples come in the order of the data set.
    pub shuffle: bool,
    /// Seeds the order together with `epoch`; only the low 32 bits of their sum count.
    pub seed: u64,
    /// The first epoch; see [`DistributedSampler::set_epoch`].
    pub epoch: u64,
    /// What to do when ranks cannot have equally many: leave the last samples of the order out (true), or
    /// repeat the first ones (false).
    pub drop_last: bool,
}

impl Default for DistributedOptions {
    fn default() -> Self {
        DistributedOptions {
            len: 0,
            replicas: 1,
            rank: 0,
            shuffle: true,
            seed: 0,
            epoch: 0,
            drop_last: false,
        }
    }
}

/// Options that no sampler can follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// Nobody to give samples to.
    #[error(
        "a sampler needs at least one replica; \
         set `replicas` to the number of ranks, 1 if there is only this one"
    )]
    NoReplicas,

    /// The rank does not exist.
    #[error(
        "rank {rank} does not exist among {replicas} replicas; \
         ranks count from 0, so set `rank` to at most {}",
        replicas.saturating_sub(1)
    )]
    RankOutOfRange {
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        replicas: usize,
    },

    /// An epoch has more positions than memory has addresses.
    #[error(
        "{len} samples among {replicas} replicas are more than this machine can count; \
         sample shards of the data set one after another"
    )]
    TooLarge {
        /// Samples in the data set.
        len: usize,
        /// Ranks that share them.
        replicas: usize,
    },
}

/// The share of one rank in every epoch, equal to PyTorch's `DistributedSampler` index for index.
///
/// Rank `r` of `R` takes positions `r, r + R, r + 2R, …` of the epoch's order, which is first cut
/// (`drop_last`) or continued from its beginning, over and over if need be, until all ranks have equally
/// many.
///
/// Deterministic: the order depends on the options and the epoch only, so that ranks need not talk to each
/// other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedSampler {
    options: DistributedOptions,
    share: usize,
}

impl DistributedSampler {
    /// Checks the options.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] when there are no replicas, when `rank` is not one of them, or when the positions of
    /// an epoch exceed the address space.
    pub fn new(options: DistributedOptions) -> Result<Self, SamplerError> {
        let DistributedOptions { len, replicas, rank, drop_last, .. } = options;
        if replicas == 0 {
            return Err(SamplerError::NoReplicas);
        }
        if rank >= replicas {
            return Err(SamplerError::RankOutOfRange { rank, replicas });
        }
        // PyTorch's ceil((len - replicas) / replicas) for an uneven len is the quotient rounded down.
        let share = if drop_last { len / replicas } else { len.div_ceil(replicas) };
        if len > LONGEST || share.checked_mul(replicas).is_none() {
            return Err(SamplerError::TooLarge { len, replicas });
        }
        Ok(DistributedSampler { options, share })
    }

    /// How many samples this rank has in an epoch: the same number on every rank.
    pub fn len(&self) -> usize {
        self.share
    }

    /// Whether an epoch is empty: no samples, or fewer than ranks with `drop_last`.
    pub fn is_empty(&self) -> bool {
        self.share == 0
    }

    /// Chooses the epoch whose order [`indices`](Self::indices) gives. Call it before each epoch, on every
    /// rank; without it all epochs have the same order.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.options.epoch = epoch;
    }

    /// The samples of this rank in the current epoch, in the order to train on them.
    ///
    /// A shuffled epoch draws the order of the whole data set first: `8 len` bytes, and time proportional to
    /// `len`.
    pub fn indices(&self) -> Vec<usize> {
        let DistributedOptions { len, replicas, rank, shuffle, seed, epoch, .. } = self.options;
        let positions = (0..self.share).map(|i| (rank + i * replicas) % len);
        if !shuffle {
            return positions.collect();
        }
        let order = randperm(len, &mut Mersenne::new(seed.wrapping_add(epoch)));
        positions.map(|position| order[position]).collect()
    }
}
