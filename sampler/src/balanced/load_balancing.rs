//! Bagua's `LoadBalancingDistributedSampler`: ranks draw samples of similar complexity at the same time, so that no
//! rank waits long for the one with the longest sample.
//!
//! Source: `bagua/torch_api/contrib/load_balancing_data_loader.py`; Gan et al., "BAGUA: Scaling up Distributed Learning
//! with System Relaxations" (VLDB 2021).

use super::complexity::Complexities;
use super::radix::ascending;
use crate::error::SamplerError;
use crate::parts::{self, EpochPart};
use crate::ranks::{check_ranks, for_rank, warn_if_nothing};
use crate::rng::{DrawnOrder, Mersenne};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of a [`LoadBalancingDistributedSampler`] in addition to the complexities. The defaults are those of Bagua.
///
/// All options but `rank` must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadBalancingOptions {
    /// Number of ranks that share the data set. No default; `..comm.sampling()` sets it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// True for a random order of groups, and random members within `random_level`; false for the order of
    /// complexity.
    pub shuffle: bool,
    /// Seed of the order; `epoch` is added to it, and only the low 32 bits of the sum count.
    pub seed: u64,
    /// Number of the first epoch.
    pub epoch: u64,
    /// True to drop the most complex samples if the ranks cannot have equal numbers; false to repeat the least
    /// complex ones.
    pub drop_last: bool,
    /// Randomness, from 0, best balanced, to 1, nearly random. Each epoch adds a random whole number to each
    /// complexity, up to this fraction of the difference between the largest and the smallest one.
    pub random_level: f64,
}

for_rank!(LoadBalancingOptions);

impl Default for LoadBalancingOptions {
    fn default() -> Self {
        LoadBalancingOptions {
            replicas: 0,
            rank: 0,
            shuffle: true,
            seed: 0,
            epoch: 0,
            drop_last: false,
            random_level: 0.0,
        }
    }
}

/// The share of one rank in every epoch, equal to Bagua's `LoadBalancingDistributedSampler` index for index.
///
/// Samples are sorted by complexity plus noise, and cut into groups with one sample per rank; the groups are
/// shuffled. All ranks have the same number of samples. Groups depend on the number of ranks. If that changes in the
/// middle of an epoch, the samples that are left are cut into new groups, which are shuffled with the next numbers of the
/// generator; see [`set_parts`](Sampler::set_parts).
///
/// An epoch takes `28 len` bytes during sorting, and `4 len` afterwards. Deterministic.
///
/// ```
/// use hexagram_sampler::{Complexities, LoadBalancingDistributedSampler, LoadBalancingOptions, Sampler};
///
/// // In each step both ranks have samples of similar complexity: 1 and 3, then 5 and 7.
/// let of = |rank| {
///     let options = LoadBalancingOptions { replicas: 2, rank, shuffle: false, ..Default::default() };
///     LoadBalancingDistributedSampler::new(Complexities::new(vec![5.0, 1.0, 3.0, 7.0])?, options)
/// };
/// assert_eq!(of(0)?.iter().collect::<Vec<_>>(), [1, 0]);
/// assert_eq!(of(1)?.iter().collect::<Vec<_>>(), [2, 3]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
///
/// With `random_level`, the members of a group have similar complexities, and groups differ from epoch to epoch:
///
/// ```
/// # use hexagram_sampler::{Complexities, LoadBalancingDistributedSampler, LoadBalancingOptions, Sampler};
/// let complexities = Complexities::new([7, 8, 11, 4, 5, 2, 9, 10, 0, 6, 1, 3].map(f64::from).to_vec())?;
/// let of = |rank| {
///     let options = LoadBalancingOptions { replicas: 2, rank, random_level: 0.5, ..Default::default() };
///     LoadBalancingDistributedSampler::new(complexities.clone(), options)
/// };
/// assert_eq!(of(0)?.iter().collect::<Vec<_>>(), [8, 7, 6, 5, 4, 0]);
/// assert_eq!(of(1)?.iter().collect::<Vec<_>>(), [3, 2, 1, 11, 10, 9]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LoadBalancingDistributedSampler {
    complexities: Complexities,
    options: LoadBalancingOptions,
    /// Parts of the current epoch that other numbers of ranks have drawn.
    pub(super) parts: Vec<EpochPart>,
    /// Exclusive upper bound of the noise.
    noise: u64,
}

impl LoadBalancingDistributedSampler {
    /// Creates the sampler.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the number of replicas is not set, `rank` is not below it, `random_level` is not from 0 to
    /// 1, or samples or noise exceed the countable range. If `drop_last` drops all samples, ranks draw no samples, as
    /// in Bagua, and a warning reports it.
    pub fn new(complexities: Complexities, options: LoadBalancingOptions) -> Result<Self, SamplerError> {
        let LoadBalancingOptions { replicas, rank, drop_last, random_level, .. } = options;
        let len = complexities.len();
        check_ranks(len, rank, replicas, replicas)?;
        if u32::try_from(len + replicas).is_err() {
            return Err(SamplerError::TooLarge { len, replicas });
        }
        check_level(random_level)?;
        if drop_last {
            warn_if_nothing(rank, len, replicas);
        }
        let noise = complexities.spread() * random_level + 1.0;
        if noise >= i64::MAX as f64 {
            let remedy = "scale the complexities down: their range leaves no room for noise";
            return Err(SamplerError::BadNumber { option: "random_level", value: random_level, remedy });
        }
        Ok(LoadBalancingDistributedSampler { complexities, options, parts: Vec::new(), noise: noise as u64 })
    }

    /// Returns the complexities by which samples are balanced.
    pub fn complexities(&self) -> &Complexities {
        &self.complexities
    }

    pub(crate) fn options(&self) -> &LoadBalancingOptions {
        &self.options
    }

    /// Returns the position at which the present number of ranks began.
    pub(crate) fn start(&self) -> usize {
        parts::start(&self.parts)
    }

    /// Returns the order of the current epoch after its earlier parts, for all ranks. `drawn` returns the samples that
    /// ranks have drawn from some groups after a number of positions.
    pub(crate) fn groups(&self, drawn: impl Fn(&SampleGroups, usize) -> Vec<usize>) -> SampleGroups {
        let LoadBalancingOptions { replicas, shuffle, seed, epoch, .. } = self.options;
        let mut generator = shuffle.then(|| Mersenne::new(seed.wrapping_add(epoch)));
        let noisy = self.complexities.as_slice().iter().map(|complexity| match &mut generator {
            Some(generator) => complexity + generator.below(self.noise) as f64,
            None => *complexity,
        });
        let all = ascending(noisy);
        let left = parts::left(all, &self.parts, |sorted, ranks, positions| {
            drawn(&self.divided(sorted.to_vec(), ranks, generator.as_mut()), positions)
        });
        self.divided(left, replicas, generator.as_mut())
    }

    /// Cuts sorted samples into groups, and draws the order of the groups.
    fn divided(&self, sorted: Vec<u32>, ranks: usize, generator: Option<&mut Mersenne>) -> SampleGroups {
        let share = self.share(sorted.len(), ranks);
        let shuffled = generator.map(|generator| DrawnOrder::drawn(share, generator));
        SampleGroups { sorted, shuffled, share, replicas: ranks }
    }

    /// Returns the number of groups of `len` samples.
    fn share(&self, len: usize, ranks: usize) -> usize {
        if self.options.drop_last { len / ranks } else { len.div_ceil(ranks) }
    }
}

/// Groups with one sample per rank.
pub(crate) struct SampleGroups {
    /// All samples, sorted by complexity plus noise.
    sorted: Vec<u32>,
    shuffled: Option<DrawnOrder>,
    /// Number of groups.
    pub(crate) share: usize,
    pub(crate) replicas: usize,
}

impl SampleGroups {
    /// Returns the sample that `rank` draws at a place of the epoch.
    pub(crate) fn at(&self, place: usize, rank: usize) -> usize {
        let group = self.shuffled.as_ref().map_or(place, |order| order.at(place));
        self.sorted[(group * self.replicas + rank) % self.sorted.len()] as usize
    }
}

impl Sampler for LoadBalancingDistributedSampler {
    type Item = usize;

    fn len(&self) -> usize {
        self.share(self.complexities.len(), self.options.replicas)
    }

    fn epoch(&self) -> u64 {
        self.options.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        if epoch != self.options.epoch {
            self.parts.clear();
        }
        self.options.epoch = epoch;
    }

    fn stride(&self) -> usize {
        self.options.replicas
    }

    fn fingerprint(&self) -> u64 {
        let LoadBalancingOptions { shuffle, seed, drop_last, random_level, .. } = self.options;
        let complexities = self.complexities.as_slice().iter().map(|complexity| complexity.to_bits());
        let flags = [shuffle.into(), drop_last.into(), seed, random_level.to_bits()];
        fingerprint("load balancing", flags.into_iter().chain(complexities))
    }

    fn grouping(&self) -> usize {
        self.options.replicas
    }

    fn set_parts(&mut self, parts: &[EpochPart]) {
        self.parts = parts.to_vec();
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        let LoadBalancingOptions { replicas, rank, .. } = self.options;
        let groups = self.groups(|groups, positions| {
            let places = 0..positions.div_ceil(groups.replicas).min(groups.share);
            places.flat_map(|place| (0..groups.replicas).map(move |rank| groups.at(place, rank))).collect()
        });
        let begin = position.saturating_sub(self.start()).div_ceil(replicas).min(groups.share);
        Box::new((begin..groups.share).map(move |place| groups.at(place, rank)))
    }
}

/// Checks that a level of randomness is valid.
pub(crate) fn check_level(random_level: f64) -> Result<(), SamplerError> {
    match (0.0..=1.0).contains(&random_level) {
        true => Ok(()),
        false => Err(SamplerError::BadNumber {
            option: "random_level",
            value: random_level,
            remedy: "choose it from 0, best balanced, to 1, nearly random",
        }),
    }
}
