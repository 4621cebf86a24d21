//! PyTorch's `RandomSampler`, `SubsetRandomSampler` and `WeightedRandomSampler`, index for index.
//!
//! PyTorch draws all epochs from one generator, whose state is needed to resume. Here, epoch `e` is the first epoch
//! of a generator seeded with `seed + e`, like in `DistributedSampler`.
//!
//! Source: `torch/utils/data/sampler.py`.

use crate::error::{SamplerError, check_entries};
use crate::ranks::{check_ranks, check_samples};
use crate::rng::{DrawnOrder, Mersenne, multinomial};
use crate::sampler::{Draws, Sampler, fingerprint};
use std::sync::Arc;

/// Options of a [`RandomSampler`]. The defaults are those of PyTorch: each sample once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RandomOptions {
    /// Number of samples in the data set.
    pub len: usize,
    /// True to draw with replacement: some samples repeat, and others are missing.
    pub replacement: bool,
    /// Number of samples to draw; by default, all. Without replacement, a larger number draws order after order.
    pub num_samples: Option<usize>,
    /// Seed of the order; `epoch` is added to it, and only the low 32 bits of the sum count.
    pub seed: u64,
    /// Number of the first epoch.
    pub epoch: u64,
}

/// The whole data set in random order, on one rank.
///
/// ```
/// use hexagram_sampler::{RandomOptions, RandomSampler, Sampler};
///
/// let sampler = RandomSampler::new(RandomOptions { len: 5, ..Default::default() })?;
/// assert_eq!(sampler.iter().collect::<Vec<_>>(), [4, 0, 1, 3, 2]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RandomSampler {
    options: RandomOptions,
    draws: usize,
}

impl RandomSampler {
    /// Creates the sampler.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the data set is empty, the number of draws is 0, or a number is too large to count.
    pub fn new(options: RandomOptions) -> Result<Self, SamplerError> {
        check_ranks(options.len, 0, 1, 1)?;
        check_samples(options.len)?;
        let draws = options.num_samples.unwrap_or(options.len);
        check_draws(draws)?;
        Ok(RandomSampler { options, draws })
    }

    fn with_replacement(&self, mut generator: Mersenne, position: usize) -> Draws<usize> {
        let range = self.options.len as u64;
        for _ in 0..position.min(self.draws) {
            generator.below(range);
        }
        Box::new((position..self.draws.max(position)).map(move |_| generator.below(range) as usize))
    }

    /// Returns order after order, from `position` on.
    fn without_replacement(&self, mut generator: Mersenne, position: usize) -> Draws<usize> {
        let len = self.options.len;
        if position >= self.draws {
            return Box::new(std::iter::empty());
        }
        for _ in 0..position / len {
            DrawnOrder::drawn(len, &mut generator);
        }
        let mut order = DrawnOrder::drawn(len, &mut generator);
        Box::new((position..self.draws).map(move |place| {
            if place % len == 0 && place > position {
                order = DrawnOrder::drawn(len, &mut generator);
            }
            order.at(place % len)
        }))
    }
}

impl Sampler for RandomSampler {
    type Item = usize;

    fn len(&self) -> usize {
        self.draws
    }

    fn epoch(&self) -> u64 {
        self.options.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.options.epoch = epoch;
    }

    fn fingerprint(&self) -> u64 {
        let RandomOptions { len, replacement, seed, .. } = self.options;
        fingerprint("random", [len as u64, replacement.into(), self.draws as u64, seed])
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        let RandomOptions { replacement, seed, epoch, .. } = self.options;
        let generator = Mersenne::new(seed.wrapping_add(epoch));
        match replacement {
            true => self.with_replacement(generator, position),
            false => self.without_replacement(generator, position),
        }
    }
}

/// Some samples of the data set, in random order.
///
/// ```
/// use hexagram_sampler::{Sampler, SubsetRandomSampler};
///
/// let sampler = SubsetRandomSampler::new(vec![1, 4, 7], 0)?;
/// let mut drawn: Vec<usize> = sampler.iter().collect();
/// drawn.sort();
/// assert_eq!(drawn, [1, 4, 7]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsetRandomSampler {
    indices: Arc<[usize]>,
    seed: u64,
    epoch: u64,
}

impl SubsetRandomSampler {
    /// Draws each of `indices` once.
    ///
    /// # Errors
    ///
    /// [`SamplerError::NoSamples`] if `indices` is empty.
    pub fn new(indices: Vec<usize>, seed: u64) -> Result<Self, SamplerError> {
        if indices.is_empty() {
            return Err(SamplerError::NoSamples);
        }
        Ok(SubsetRandomSampler { indices: indices.into(), seed, epoch: 0 })
    }
}

impl Sampler for SubsetRandomSampler {
    type Item = usize;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn fingerprint(&self) -> u64 {
        fingerprint("subset", self.indices.iter().map(|&index| index as u64).chain([self.seed]))
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        let indices = self.indices.clone();
        let len = self.indices.len();
        let order = DrawnOrder::drawn(len, &mut Mersenne::new(self.seed.wrapping_add(self.epoch)));
        Box::new((position..len.max(position)).map(move |place| indices[order.at(place)]))
    }
}

/// Options of a [`WeightedRandomSampler`]. The defaults are those of PyTorch: with replacement.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedOptions {
    /// Relative probability of each sample; the sum need not be 1.
    pub weights: Vec<f64>,
    /// Number of samples to draw.
    pub num_samples: usize,
    /// True if a sample may be drawn again.
    pub replacement: bool,
    /// Seed of the order; `epoch` is added to it, and only the low 32 bits of the sum count.
    pub seed: u64,
    /// Number of the first epoch.
    pub epoch: u64,
}

impl Default for WeightedOptions {
    fn default() -> Self {
        WeightedOptions { weights: Vec::new(), num_samples: 0, replacement: true, seed: 0, epoch: 0 }
    }
}

/// Samples drawn by weight: `torch.multinomial`.
///
/// ```
/// use hexagram_sampler::{Sampler, WeightedOptions, WeightedRandomSampler};
///
/// let weights = vec![0.0, 1.0, 3.0];
/// let sampler = WeightedRandomSampler::new(WeightedOptions { weights, num_samples: 100, ..Default::default() })?;
/// assert!(sampler.iter().all(|sample| sample != 0), "its weight is 0");
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedRandomSampler {
    options: Arc<WeightedOptions>,
    epoch: u64,
}

impl WeightedRandomSampler {
    /// Creates the sampler.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if `weights` is empty, a weight or the sum is negative, infinite or NaN, or the number of
    /// draws is 0. Also if draws without replacement outnumber the samples with a positive weight (PyTorch then draws
    /// samples of weight 0).
    pub fn new(options: WeightedOptions) -> Result<Self, SamplerError> {
        let WeightedOptions { weights, num_samples, replacement, epoch, .. } = &options;
        if weights.is_empty() {
            return Err(SamplerError::NoSamples);
        }
        check_draws(*num_samples)?;
        check_entries("weights", weights, false)?;
        if !weights.iter().sum::<f64>().is_finite() {
            let remedy = "scale the weights down: their sum is not finite";
            return Err(SamplerError::BadNumber { option: "weights", value: f64::INFINITY, remedy });
        }
        let positive = weights.iter().filter(|weight| **weight > 0.0).count();
        let needed = if *replacement { 1 } else { *num_samples };
        if positive < needed {
            return Err(SamplerError::FewWeights { positive, wanted: *num_samples });
        }
        let epoch = *epoch;
        Ok(WeightedRandomSampler { options: Arc::new(options), epoch })
    }
}

impl Sampler for WeightedRandomSampler {
    type Item = usize;

    fn len(&self) -> usize {
        self.options.num_samples
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn fingerprint(&self) -> u64 {
        let WeightedOptions { weights, num_samples, replacement, seed, .. } = &*self.options;
        let numbers = [*num_samples as u64, u64::from(*replacement), *seed];
        fingerprint("weighted", numbers.into_iter().chain(weights.iter().map(|weight| weight.to_bits())))
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        let WeightedOptions { weights, num_samples, replacement, seed, .. } = &*self.options;
        let mut generator = Mersenne::new(seed.wrapping_add(self.epoch));
        // A single draw uses the method without replacement, as in PyTorch, with different random numbers.
        let drawn = match *replacement && *num_samples > 1 {
            true => multinomial::with_replacement(weights, *num_samples, &mut generator),
            false => multinomial::without_replacement(weights, *num_samples, &mut generator),
        };
        Box::new(drawn.into_iter().skip(position))
    }
}

fn check_draws(draws: usize) -> Result<(), SamplerError> {
    match draws {
        0 => Err(SamplerError::BadNumber {
            option: "num_samples",
            value: 0.0,
            remedy: "draw at least one sample",
        }),
        _ => Ok(()),
    }
}
