//! Bagua's `LoadBalancingDistributedBatchSampler`: batches of samples of similar complexity, equally many on every
//! rank.
//!
//! Source: `bagua/torch_api/contrib/load_balancing_data_loader.py`, whose `drop_last` makes numbers unequal, and whose
//! padding does when a rank has less than half as many batches as another; here neither does.

use crate::error::SamplerError;
use crate::load_balancing::{Groups, LoadBalancingDistributedSampler};
use crate::sampler::{Draws, Sampler, fingerprint};
use std::fmt;
use std::sync::Arc;

/// Makes batches of one rank's samples, which come in the order to train on them.
pub type BatchFunction = dyn Fn(&[usize]) -> Vec<Vec<usize>> + Send + Sync;

/// Rule by which one rank's samples become batches. Tokens of a sample are its complexity.
#[derive(Clone)]
#[non_exhaustive]
pub enum Batching {
    /// Fixed number of samples each; the last batch may have fewer.
    Fixed(usize),
    /// Longest run of samples that together have no more tokens.
    MaxTokens(f64),
    /// Longest run of samples that have no more tokens when all are padded to the longest of them.
    MaxPaddedTokens(f64),
    /// Batches that a function makes. It must be the same function on all ranks and depend on the samples alone.
    Custom(Arc<BatchFunction>),
}

impl fmt::Debug for Batching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Batching::Fixed(size) => f.debug_tuple("Fixed").field(size).finish(),
            Batching::MaxTokens(limit) => f.debug_tuple("MaxTokens").field(limit).finish(),
            Batching::MaxPaddedTokens(limit) => f.debug_tuple("MaxPaddedTokens").field(limit).finish(),
            Batching::Custom(_) => f.write_str("Custom(..)"),
        }
    }
}

impl Batching {
    fn check(&self, complexities: &[f64]) -> Result<(), SamplerError> {
        let limit = match self {
            Batching::Fixed(0) => return Err(SamplerError::EmptyBatch),
            Batching::Fixed(_) | Batching::Custom(_) => return Ok(()),
            Batching::MaxTokens(limit) | Batching::MaxPaddedTokens(limit) => *limit,
        };
        if !(limit > 0.0 && limit.is_finite()) {
            let remedy = "set a positive, finite number of tokens";
            return Err(SamplerError::BadNumber { option: "max_tokens", value: limit, remedy });
        }
        match complexities.iter().position(|tokens| *tokens > limit) {
            Some(sample) => Err(SamplerError::Oversized { sample, tokens: complexities[sample], limit }),
            None => Ok(()),
        }
    }

    fn batches(&self, indices: &[usize], complexities: &[f64]) -> Vec<Vec<usize>> {
        match self {
            Batching::Fixed(size) => indices.chunks(*size).map(<[usize]>::to_vec).collect(),
            Batching::MaxTokens(limit) => greedy(indices, |sum, _, sample| {
                let sum = sum + complexities[sample];
                (sum <= *limit, sum)
            }),
            Batching::MaxPaddedTokens(limit) => greedy(indices, |longest, samples, sample| {
                let longest = longest.max(complexities[sample]);
                (longest * (samples + 1) as f64 <= *limit, longest)
            }),
            Batching::Custom(function) => {
                let batches = function(indices).into_iter().filter(|batch| !batch.is_empty());
                batches.collect()
            }
        }
    }
}

/// Adds each sample to the last batch if it fits there, else begins another. `join` is given what a batch has come to,
/// how many samples it has and one more; it says whether that one fits, and what the batch then comes to.
fn greedy(indices: &[usize], join: impl Fn(f64, usize, usize) -> (bool, f64)) -> Vec<Vec<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    let mut so_far = 0.0;
    for &sample in indices {
        let together = batches.last().map(|batch| join(so_far, batch.len(), sample));
        match (together, batches.last_mut()) {
            (Some((true, sum)), Some(batch)) => {
                batch.push(sample);
                so_far = sum;
            }
            _ => {
                batches.push(vec![sample]);
                so_far = join(0.0, 0, sample).1;
            }
        }
    }
    batches
}

/// Batches of a [`LoadBalancingDistributedSampler`]'s draws, the same number on every rank in every epoch.
///
/// The number is the largest of all ranks, and the others begin again with their first batches; with `drop_last` it is
/// the smallest, and the others leave out their last ones. A rank for which a function makes no batch at all repeats
/// its first sample, alone, so that nobody waits for it.
///
/// Every rank computes the batches of all ranks, once an epoch. A position counts steps: an epoch can go on only with
/// the same number of ranks. Deterministic.
///
/// ```
/// use hexagram_sampler::{Batching, Complexities, LoadBalancingBatchSampler, Sampler};
/// use hexagram_sampler::{LoadBalancingDistributedSampler, LoadBalancingOptions};
///
/// // Batches of at most 10 tokens.
/// let tokens = Complexities::new(vec![5.0, 1.0, 3.0, 7.0])?;
/// let options = LoadBalancingOptions { replicas: 1, shuffle: false, ..Default::default() };
/// let sampler = LoadBalancingDistributedSampler::new(tokens, options)?;
/// let batches = LoadBalancingBatchSampler::new(sampler, Batching::MaxTokens(10.0), false)?;
/// assert_eq!(batches.iter().collect::<Vec<_>>(), [vec![1, 2, 0], vec![3]]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone)]
pub struct LoadBalancingBatchSampler {
    sampler: LoadBalancingDistributedSampler,
    batching: Batching,
    drop_last: bool,
    /// Number of batches of each rank in the current epoch.
    share: usize,
    /// This rank's, of which the first come again if they are fewer.
    batches: Arc<[Vec<usize>]>,
}

impl LoadBalancingBatchSampler {
    /// Makes batches of the draws of `sampler`, for its rank.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] when a batch could have no samples or no tokens, or a sample does not fit into one.
    pub fn new(
        sampler: LoadBalancingDistributedSampler,
        batching: Batching,
        drop_last: bool,
    ) -> Result<Self, SamplerError> {
        batching.check(sampler.complexities().as_slice())?;
        let mut batches =
            LoadBalancingBatchSampler { sampler, batching, drop_last, share: 0, batches: [].into() };
        batches.arrange();
        Ok(batches)
    }

    /// Makes the batches of the current epoch.
    fn arrange(&mut self) {
        let groups = self.sampler.groups();
        let options = self.sampler.options();
        let number = |rank| self.of_rank(&groups, rank).len();
        let numbers = (0..options.replicas).map(number);
        let share = if self.drop_last { numbers.min() } else { numbers.max() };
        self.batches = self.of_rank(&groups, options.rank).into();
        self.share = share.unwrap_or(0);
    }

    fn of_rank(&self, groups: &Groups, rank: usize) -> Vec<Vec<usize>> {
        let indices: Vec<usize> = (0..self.sampler.len()).map(|place| groups.at(place, rank)).collect();
        let batches = self.batching.batches(&indices, self.sampler.complexities().as_slice());
        match indices.first() {
            Some(first) if batches.is_empty() => vec![vec![*first]],
            _ => batches,
        }
    }
}

impl Sampler for LoadBalancingBatchSampler {
    type Item = Vec<usize>;

    fn len(&self) -> usize {
        self.share
    }

    fn epoch(&self) -> u64 {
        self.sampler.epoch()
    }

    fn set_epoch(&mut self, epoch: u64) {
        if epoch != self.epoch() {
            self.sampler.set_epoch(epoch);
            self.arrange();
        }
    }

    /// Returns the fingerprint of the rule; of a function it says only that there is one.
    fn fingerprint(&self) -> u64 {
        let batching = match self.batching {
            Batching::Fixed(size) => [0, size as u64],
            Batching::MaxTokens(limit) => [1, limit.to_bits()],
            Batching::MaxPaddedTokens(limit) => [2, limit.to_bits()],
            Batching::Custom(_) => [3, 0],
        };
        fingerprint(
            "load balancing batch",
            batching.into_iter().chain([self.sampler.fingerprint(), self.drop_last.into()]),
        )
    }

    fn iter_from(&self, position: usize) -> Draws<Vec<usize>> {
        let batches = self.batches.clone();
        Box::new((position..self.share.max(position)).map(move |step| batches[step % batches.len()].clone()))
    }
}
