//! PyTorch's `DistributedSampler`: one epoch's samples, divided evenly among ranks.
//!
//! Source: `torch/utils/data/distributed.py`.

use crate::error::SamplerError;
use crate::mersenne::Mersenne;
use crate::permutation::Order;
use crate::ranks::{check_ranks, for_rank, warn_if_nothing};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of a [`DistributedSampler`]. Defaults are PyTorch's: shuffled, seed 0, nothing dropped.
///
/// All ranks must agree on everything but `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistributedOptions {
    /// Number of samples in the data set.
    pub len: usize,
    /// Number of ranks that share the data set. It has no default: `..comm.sampling()` names it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// True if an epoch has a random order; otherwise samples come in the order of the data set.
    pub shuffle: bool,
    /// Seed of the order; `epoch` is added to it, and only the low 32 bits of the sum count.
    pub seed: u64,
    /// Number of the first epoch; see [`Sampler::set_epoch`].
    pub epoch: u64,
    /// True to leave the last samples of the order out where ranks cannot have equally many; false to repeat the first
    /// ones.
    pub drop_last: bool,
    /// True to draw every sample exactly once, so that some ranks draw once more than others.
    /// For evaluation; in training, a rank that draws more waits for the others in vain.
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
/// Rank `r` of `R` takes positions `r, r + R, r + 2R, …` of the epoch's order, which is first cut
/// (`drop_last`) or continued from its beginning, over and over if need be, until all ranks have equally
/// many.
///
/// Deterministic: the order depends on the options and the epoch only, so that ranks need not talk to each
/// other. It does not depend on the number of ranks: [`iter_from`](Sampler::iter_from) a position draws what is
/// left, divided among as many ranks as there are now.
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
    /// Creates the sampler, if the options are sound.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] when the number of replicas is not set, when `rank` is not one of them, when `drop_last` comes
    /// with `exact`, or when the positions of an epoch exceed the address space. Without samples, and where `drop_last`
    /// drops all, ranks draw nothing, as in PyTorch, and a warning says so.
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

    /// Returns true if this rank has no samples: with `exact`, when there are fewer than ranks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Chooses the epoch whose order [`indices`](Self::indices) gives. Call it before each epoch, on every
    /// rank; without it all epochs have the same order.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.options.epoch = epoch;
    }

    /// Returns the samples of this rank in the current epoch, in the order to train on them.
    ///
    /// A shuffled epoch draws the order of the whole data set first: `4 len` bytes (`8 len` from 2^32 samples on), and
    /// time proportional to `len`.
    pub fn indices(&self) -> Vec<usize> {
        self.iter().collect()
    }

    /// Returns the number of samples from `position` on that are this rank's.
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
        let order = Order::drawn(len, &mut Mersenne::new(seed.wrapping_add(epoch)));
        Box::new(mine.map(move |position| order.at(position)))
    }
}
