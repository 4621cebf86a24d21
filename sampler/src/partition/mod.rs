//! Partitions of a data set over ranks with different data: by label, by quantity, or random. Use one to study
//! algorithms on heterogeneous data. For training with mixed samples, use a
//! [`DistributedSampler`](crate::DistributedSampler).
//!
//! All random numbers come from integers, sums and products of `f64`, so that a seed gives the same shares on every
//! machine.
//!
//! Sources: Hsu et al., "Measuring the effects of non-identical data distribution for federated visual classification"
//! (2019, arXiv:1909.06335), for [`Partition::Dirichlet`]; McMahan et al., "Communication-efficient learning of deep
//! networks from decentralized data" (AISTATS 2017) for [`Partition::Shards`]; Li et al., "Federated learning on
//! non-IID data silos" (ICDE 2022) for [`Partition::Quantity`].

use crate::error::SamplerError;
use crate::ranks::{check_ranks, check_samples};
use crate::rng::{Mersenne, randperm};
use std::fmt;

#[cfg(test)]
mod tests;

/// Rule that divides a data set among ranks for the whole training: every sample goes to exactly one rank.
///
/// ```
/// use hexagram_sampler::Partition;
///
/// let labels: Vec<usize> = (0..1000).map(|sample| sample % 10).collect();
/// let shares = Partition::Dirichlet { alpha: 0.1 }.shares(&labels, 4, 0)?;
/// assert!(shares.iter().all(|share| share.len() == 250));
/// // Most samples of a rank have one of a few labels.
/// let of_label = |label| shares[0].iter().filter(|&&sample| labels[sample] == label).count();
/// assert!((0..10).map(of_label).max() > Some(50));
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Partition {
    /// The same number of random samples for each rank.
    Equal,
    /// The same number of samples for each rank, with labels from its own mix: q ~ Dirichlet(α K p), where K is the
    /// number of labels and p their shares of the data set. Once a label is exhausted, q is normalized without it.
    Dirichlet {
        /// Concentration α, above 0. With 0.1 a rank has one or two labels; with 1 it lacks some; with 100 it has all
        /// labels in similar numbers.
        alpha: f64,
    },
    /// The data set is sorted by label and cut into equal shards; each rank gets the same number of random shards.
    Shards {
        /// Number of shards for each rank, at least 1.
        per_rank: usize,
    },
    /// The same mix of labels for each rank, but different numbers of samples. The shares follow Dirichlet(α), and
    /// each rank has at least one sample.
    Quantity {
        /// Concentration α, above 0: the smaller, the more the numbers differ.
        alpha: f64,
    },
}

impl Partition {
    /// Returns the samples of each rank, as indices into `labels`, in random order. Only the low 32 bits of `seed`
    /// are used.
    ///
    /// If the data set cannot be divided evenly, equal numbers differ by one sample; with shards, by one sample per
    /// shard. Takes one draw per sample, over the remaining labels or ranks.
    ///
    /// # Errors
    /// [`SamplerError`] if the number of ranks is 0, the samples are fewer than the ranks or shards, or α is not
    /// above 0.
    pub fn shares(&self, labels: &[usize], ranks: usize, seed: u64) -> Result<Vec<Vec<usize>>, SamplerError> {
        check_ranks(labels.len(), 0, ranks, ranks)?;
        check_samples(labels.len())?;
        self.check(labels.len(), ranks)?;
        let mut generator = Mersenne::new(seed);
        Ok(match *self {
            Partition::Equal => equal(labels.len(), ranks, &mut generator),
            Partition::Dirichlet { alpha } => by_mix(labels, ranks, alpha, &mut generator),
            Partition::Shards { per_rank } => by_shards(labels, ranks, per_rank, &mut generator),
            Partition::Quantity { alpha } => by_quantity(labels.len(), ranks, alpha, &mut generator),
        })
    }

    fn check(&self, len: usize, ranks: usize) -> Result<(), SamplerError> {
        let parts = match *self {
            Partition::Equal => ranks,
            Partition::Dirichlet { alpha } | Partition::Quantity { alpha } => {
                if !(alpha.is_finite() && alpha > 0.0) {
                    let remedy = "use a finite number above 0";
                    return Err(SamplerError::BadNumber { option: "alpha", value: alpha, remedy });
                }
                ranks
            }
            Partition::Shards { per_rank: 0 } => {
                let remedy = "use at least one shard per rank";
                return Err(SamplerError::BadNumber { option: "per_rank", value: 0.0, remedy });
            }
            Partition::Shards { per_rank } => ranks.saturating_mul(per_rank),
        };
        if len < parts {
            return Err(SamplerError::FewSamples { len, parts });
        }
        Ok(())
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::Equal => write!(f, "equal"),
            Partition::Dirichlet { alpha } => write!(f, "dirichlet({alpha})"),
            Partition::Shards { per_rank } => write!(f, "shards({per_rank})"),
            Partition::Quantity { alpha } => write!(f, "quantity({alpha})"),
        }
    }
}

/// Deals a random order to the ranks in turn, one sample each.
fn equal(len: usize, ranks: usize, generator: &mut Mersenne) -> Vec<Vec<usize>> {
    let order = randperm(len, generator);
    (0..ranks).map(|rank| order.iter().copied().skip(rank).step_by(ranks).collect()).collect()
}

/// Makes one rank after another draw a sample with a label of its own mix.
///
/// The mix itself is never drawn: if q ~ Dirichlet(a), the next label is `k` with probability ∝ a_k + count_k, where
/// count_k is the number of its earlier draws (Pólya's urn). Without the exhausted labels, the rest of q also follows
/// a Dirichlet distribution, so that the rule stays the same.
fn by_mix(labels: &[usize], ranks: usize, alpha: f64, generator: &mut Mersenne) -> Vec<Vec<usize>> {
    let mut left = samples_by_label(labels, generator);
    let total = left.len() as f64;
    let prior: Vec<f64> =
        left.iter().map(|samples| alpha * total * samples.len() as f64 / labels.len() as f64).collect();
    let mut urns = vec![prior; ranks];
    let mut shares = vec![Vec::with_capacity(labels.len().div_ceil(ranks)); ranks];
    for at in 0..labels.len() {
        let rank = at % ranks;
        let urn = &mut urns[rank];
        let label = drawn(urn, |label| !left[label].is_empty(), generator);
        urn[label] += 1.0;
        shares[rank].extend(left[label].pop());
    }
    shares
}

/// Returns the samples of each label that occurs, in random order.
fn samples_by_label(labels: &[usize], generator: &mut Mersenne) -> Vec<Vec<usize>> {
    let mut order = randperm(labels.len(), generator);
    order.sort_by_key(|&sample| labels[sample]);
    order.chunk_by(|&one, &other| labels[one] == labels[other]).map(<[usize]>::to_vec).collect()
}

/// Draws one of the `open` entries, with a probability proportional to its weight. At least one must be open.
fn drawn(weights: &[f64], open: impl Fn(usize) -> bool, generator: &mut Mersenne) -> usize {
    let among = || weights.iter().enumerate().filter(|(entry, _)| open(*entry));
    let mut target = generator.uniform() * among().map(|(_, weight)| weight).sum::<f64>();
    let mut last = 0;
    for (entry, weight) in among() {
        last = entry;
        target -= weight;
        if target < 0.0 {
            break;
        }
    }
    // The last open entry, if rounding of the sums passed its end.
    last
}

/// Sorts by label, cuts shards, and deals them out.
fn by_shards(labels: &[usize], ranks: usize, per_rank: usize, generator: &mut Mersenne) -> Vec<Vec<usize>> {
    let sorted = samples_by_label(labels, generator).concat();
    let shards = ranks * per_rank;
    let start = |shard: usize| (sorted.len() as u128 * shard as u128 / shards as u128) as usize;
    let order = randperm(shards, generator);
    let share = |dealt: &[usize]| {
        let samples: Vec<usize> =
            dealt.iter().flat_map(|&shard| &sorted[start(shard)..start(shard + 1)]).copied().collect();
        let order = randperm(samples.len(), generator);
        order.into_iter().map(|at| samples[at]).collect()
    };
    order.chunks(per_rank).map(share).collect()
}

/// Gives one sample to each rank, and the others by Pólya's urn over the ranks.
fn by_quantity(len: usize, ranks: usize, alpha: f64, generator: &mut Mersenne) -> Vec<Vec<usize>> {
    let order = randperm(len, generator);
    let mut urn = vec![alpha; ranks];
    let mut shares = vec![Vec::new(); ranks];
    for (at, sample) in order.into_iter().enumerate() {
        let rank = if at < ranks { at } else { drawn(&urn, |_| true, generator) };
        urn[rank] += f64::from(u8::from(at >= ranks));
        shares[rank].push(sample);
    }
    shares
}
