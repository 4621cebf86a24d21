//! Bagua's `LoadBalancingDistributedBatchSampler`: batches of samples of similar complexity, the same number on every
//! rank.
//!
//! Source: `bagua/torch_api/contrib/load_balancing_data_loader.py`. There, ranks get different numbers of batches
//! with `drop_last`, and with padding if a rank has less than half as many batches as another. Here the numbers are
//! always equal.

use super::load_balancing::{LoadBalancingDistributedSampler, SampleGroups};
use crate::error::SamplerError;
use crate::parts::EpochPart;
use crate::sampler::{Draws, Sampler, fingerprint};
use std::fmt;
use std::sync::Arc;

/// Function that makes batches of the samples of one rank, given in training order.
pub type BatchFunction = dyn Fn(&[usize]) -> Vec<Vec<usize>> + Send + Sync;

/// Rule that divides the samples of one rank into batches. The tokens of a sample are its complexity.
#[derive(Clone)]
#[non_exhaustive]
pub enum Batching {
    /// Batches of a fixed number of samples; the last one may have fewer.
    Fixed(usize),
    /// The longest run of samples whose total is at most this number of tokens.
    MaxTokens(f64),
    /// The longest run of samples whose total is at most this number of tokens, with each sample padded to the
    /// longest one.
    MaxPaddedTokens(f64),
    /// Batches from a function. It must be the same function on all ranks, and depend on the samples alone.
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

/// Adds each sample to the last batch if it fits, or else begins a new batch. `join` takes the current size of a
/// batch, its number of samples and one more sample. It returns whether that sample fits, and the resulting size.
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

/// Batches of the draws of a [`LoadBalancingDistributedSampler`], the same number on every rank in every epoch.
///
/// The number is the largest of all ranks, and the other ranks repeat their first batches. With `drop_last` it is the
/// smallest, and the other ranks drop their last batches. A rank for which a function makes no batch repeats its
/// first sample as a batch, so that no rank waits for it.
///
/// Every rank computes the batches of all ranks, once per epoch. A position counts steps. If the number of ranks changes
/// in the middle of an epoch, the present ranks share the samples that are in no earlier batch of any rank. Deterministic.
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
    /// Number of batches of each rank in the current epoch, without earlier parts.
    whole: usize,
    /// Number of batches of each rank after the earlier parts.
    share: usize,
    /// Batches of this rank; if they are fewer than `share`, the first ones repeat.
    batches: Arc<[Vec<usize>]>,
}

impl LoadBalancingBatchSampler {
    /// Divides the draws of `sampler` into batches, for the rank of `sampler`.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the rule allows empty batches, or a sample does not fit into a batch.
    pub fn new(
        sampler: LoadBalancingDistributedSampler,
        batching: Batching,
        drop_last: bool,
    ) -> Result<Self, SamplerError> {
        batching.check(sampler.complexities().as_slice())?;
        let mut batches = LoadBalancingBatchSampler {
            sampler,
            batching,
            drop_last,
            whole: 0,
            share: 0,
            batches: [].into(),
        };
        batches.arrange();
        Ok(batches)
    }

    /// Makes the batches of the current epoch.
    fn arrange(&mut self) {
        let groups = self.sampler.groups(|groups, steps| {
            (0..groups.replicas)
                .flat_map(|rank| self.of_rank(groups, rank).into_iter().take(steps).flatten())
                .collect()
        });
        let options = self.sampler.options();
        let number = |rank| self.of_rank(&groups, rank).len();
        let numbers = (0..options.replicas).map(number);
        let share = if self.drop_last { numbers.min() } else { numbers.max() };
        self.batches = self.of_rank(&groups, options.rank).into();
        self.share = share.unwrap_or(0);
        if self.sampler.parts.is_empty() {
            self.whole = self.share;
        }
    }

    fn of_rank(&self, groups: &SampleGroups, rank: usize) -> Vec<Vec<usize>> {
        let indices: Vec<usize> = (0..groups.share).map(|place| groups.at(place, rank)).collect();
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
        self.whole
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

    /// Returns the fingerprint of the rule; for a function, it records only its presence.
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

    fn grouping(&self) -> usize {
        self.sampler.grouping()
    }

    fn set_parts(&mut self, parts: &[EpochPart]) {
        if parts != self.sampler.parts {
            self.sampler.set_parts(parts);
            self.arrange();
        }
    }

    fn iter_from(&self, position: usize) -> Draws<Vec<usize>> {
        let position = position.saturating_sub(self.sampler.start());
        let batches = self.batches.clone();
        Box::new((position..self.share.max(position)).map(move |step| batches[step % batches.len()].clone()))
    }
}
