//! Batches that take all ranks the same time, even if sample costs differ a hundredfold and ranks differ in speed.
//!
//! ```text
//! sort     samples by cost (1 + random_level u), with u from 0 to 1 drawn for each sample and epoch
//! row      B neighbours in this order, for a global batch of B, cut into `mix` pieces
//! step     one piece of each kind, each from another row chosen at random
//! assign   the step's samples, the costliest first, each to the rank that would finish it first:
//!          the least (load + cost) / speed; then exchanged as long as that shortens the step
//! ```
//!
//! A costly sample therefore comes with other costly samples, and the cheap samples of the step even out the rest.

use super::assign::assign;
use super::complexity::Complexities;
use super::load_balancing::check_level;
use super::radix::ascending;
use crate::distributed::check_step;
use crate::error::{SamplerError, check_entries};
use crate::parts::{self, EpochPart};
use crate::ranks::{Tail, check_ranks, for_rank};
use crate::rng::{KeyedPermutation, mixed};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of a [`CostBalancedSampler`] in addition to the cost of each sample.
///
/// All options but `rank` must be equal on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct CostBalancedOptions {
    /// Number of ranks that share the data set. No default; `..comm.sampling()` sets it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of samples in one step, over all ranks; at least one per rank. More samples per rank improve the
    /// balance: with eight or more, ranks differ by a few percent at most.
    pub global_batch: usize,
    /// Speeds of the ranks, in cost per time; empty if all are equally fast.
    pub speeds: Vec<f64>,
    /// True for random steps. False for steps of consecutive samples, which are unbalanced if one sample costs more
    /// than all others of its step.
    pub shuffle: bool,
    /// Seed of the order, together with `epoch`.
    pub seed: u64,
    /// Number of the first epoch.
    pub epoch: u64,
    /// Treatment of the samples that do not fill a step.
    pub tail: Tail,
    /// Number of cost classes in a step, if there are enough samples. With 1, all samples of a step have about the
    /// same cost. More classes make steps more alike, but the steps with the costliest samples less balanced.
    pub mix: usize,
    /// Randomness, from 0 to 1: the noise that is added to the costs in each epoch, so that different samples meet.
    pub random_level: f64,
}

for_rank!(CostBalancedOptions);

impl Default for CostBalancedOptions {
    fn default() -> Self {
        CostBalancedOptions {
            replicas: 0,
            rank: 0,
            global_batch: 1,
            speeds: Vec::new(),
            shuffle: true,
            seed: 0,
            epoch: 0,
            tail: Tail::Drop,
            mix: 2,
            random_level: 0.1,
        }
    }
}

/// The batches of one rank, from steps that take all ranks the same time.
///
/// In a step, ranks have different numbers of samples: weigh each rank by its number of samples in an average. All
/// ranks have the same number of batches, and none is empty, except with [`Tail::Exact`].
///
/// The samples of a step do not depend on the number of ranks or their speeds, so that an epoch can continue with
/// different ones. After a change of the global batch, the samples that are left make new steps; see
/// [`set_parts`](Sampler::set_parts). An epoch takes `36 len` bytes during sorting, and `4 len` afterwards. The time per step is
/// proportional to the global batch times the number of ranks. Deterministic.
///
/// ```
/// use hexagram_sampler::{Complexities, CostBalancedOptions, CostBalancedSampler, Sampler};
///
/// // One step of four samples, which cost 6 together: 3 for each rank.
/// let of = |rank| {
///     let costs = Complexities::new(vec![3.0, 1.0, 1.0, 1.0])?;
///     let options = CostBalancedOptions { replicas: 2, rank, global_batch: 4, shuffle: false, ..Default::default() };
///     CostBalancedSampler::new(costs, options)
/// };
/// assert_eq!(of(0)?.iter().collect::<Vec<_>>(), [[0]]);
/// assert_eq!(of(1)?.iter().collect::<Vec<_>>(), [[1, 2, 3]]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CostBalancedSampler {
    costs: Complexities,
    options: CostBalancedOptions,
    /// Parts of the current epoch that ranks have drawn with other global batches.
    parts: Vec<EpochPart>,
}

impl CostBalancedSampler {
    /// Creates the sampler. The cost of a sample is its time, in any unit.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] if the number of replicas is 0, or `rank` is not below it; if speeds are not positive, or not
    /// one per rank; if a step has fewer samples than ranks; if `random_level` is not from 0 to 1, or `mix` is 0; or
    /// if [`Tail::Drop`] would drop all samples.
    pub fn new(costs: Complexities, options: CostBalancedOptions) -> Result<Self, SamplerError> {
        let CostBalancedOptions { replicas, rank, global_batch, ref speeds, tail, mix, random_level, .. } =
            options;
        let len = costs.len();
        check_ranks(len, rank, replicas, global_batch)?;
        if u32::try_from(len + global_batch).is_err() {
            return Err(SamplerError::TooLarge { len, replicas });
        }
        check_step(len, replicas, global_batch, tail)?;
        check_level(random_level)?;
        check_entries("speeds", speeds, true)?;
        if !speeds.is_empty() && speeds.len() != replicas {
            let given = speeds.len();
            let expected = replicas;
            return Err(SamplerError::WrongCount { option: "speeds", given, expected, each: "rank" });
        }
        if mix == 0 {
            let remedy = "choose 1 or more";
            return Err(SamplerError::BadNumber { option: "mix", value: 0.0, remedy });
        }
        Ok(CostBalancedSampler { costs, options, parts: Vec::new() })
    }

    /// Returns the number of batches of this rank for `samples` samples.
    fn batches(&self, samples: usize) -> usize {
        let CostBalancedOptions { rank, global_batch, .. } = self.options;
        samples / global_batch + usize::from(rank < samples % global_batch)
    }

    /// Returns the order of the current epoch after its earlier parts.
    fn steps(&self) -> EpochSteps {
        let CostBalancedOptions { global_batch, shuffle, seed, epoch, .. } = self.options;
        let len = self.costs.len();
        // The dropped samples, the repeated ones, and those of a smaller last step are random.
        let shuffled = KeyedPermutation::new(len, seed, epoch);
        let place = |place| if shuffle { shuffled.at(place) } else { place };
        let all = (0..len).map(|at| place(at) as u32).collect();
        let left = parts::left(all, &self.parts, |samples, global_batch, positions| {
            let steps = self.steps_of(samples, global_batch);
            let last = steps.samples.len().div_ceil(global_batch);
            (0..positions.div_ceil(global_batch).min(last)).flat_map(|step| steps.step(step)).collect()
        });
        self.steps_of(&left, global_batch)
    }

    /// Returns steps of some samples, which come in random order if the sampler shuffles.
    fn steps_of(&self, samples: &[u32], global_batch: usize) -> EpochSteps {
        let CostBalancedOptions { shuffle, seed, epoch, tail, mix, random_level, .. } = self.options;
        let costs = self.costs.as_slice();
        let count = tail.left(samples.len(), 0, global_batch);
        let order: Vec<u32> = samples.iter().copied().cycle().take(count).collect();
        if !shuffle {
            return EpochSteps { samples: order, rows: None, global_batch };
        }
        let (full, last) = order.split_at(count - count % global_batch);
        let key = mixed(seed ^ mixed(!epoch));
        let blurred = |sample: &u32| {
            let random = mixed(key ^ u64::from(*sample)) as f64 / u64::MAX as f64;
            costs[*sample as usize] * (1.0 + random_level * random)
        };
        let mut samples: Vec<u32> =
            ascending(full.iter().map(blurred)).into_iter().map(|at| full[at as usize]).collect();
        samples.extend_from_slice(last);
        let rows = full.len() / global_batch;
        let choose = |piece| KeyedPermutation::new(rows, mixed(seed ^ piece), epoch);
        EpochSteps {
            samples,
            rows: Some((1..=mix.min(global_batch) as u64).map(choose).collect()),
            global_batch,
        }
    }
}

/// The samples of all steps of an epoch.
struct EpochSteps {
    samples: Vec<u32>,
    /// For each piece of a step, the row that provides it.
    rows: Option<Vec<KeyedPermutation>>,
    global_batch: usize,
}

impl EpochSteps {
    fn step(&self, step: usize) -> Vec<usize> {
        let begin = step * self.global_batch;
        let end = self.samples.len().min(begin + self.global_batch);
        let index = |sample: &u32| *sample as usize;
        let Some(rows) = self.rows.as_deref().filter(|_| end - begin == self.global_batch) else {
            return self.samples[begin..end].iter().map(index).collect();
        };
        let cut = |piece: usize| piece * self.global_batch / rows.len();
        let piece = |(piece, row): (usize, &KeyedPermutation)| {
            let begin = row.at(step) * self.global_batch;
            &self.samples[begin + cut(piece)..begin + cut(piece + 1)]
        };
        rows.iter().enumerate().flat_map(piece).map(index).collect()
    }
}

impl Sampler for CostBalancedSampler {
    type Item = Vec<usize>;

    fn len(&self) -> usize {
        self.batches(self.options.tail.left(self.costs.len(), 0, self.options.global_batch))
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
        self.options.global_batch
    }

    fn fingerprint(&self) -> u64 {
        let CostBalancedOptions { shuffle, seed, tail, mix, random_level, .. } = self.options;
        let costs = self.costs.as_slice().iter().map(|cost| cost.to_bits());
        let tail = tail as u64;
        let flags = [shuffle.into(), seed, tail, mix as u64, random_level.to_bits()];
        fingerprint("cost balanced", flags.into_iter().chain(costs))
    }

    fn grouping(&self) -> usize {
        self.options.global_batch
    }

    fn set_parts(&mut self, parts: &[EpochPart]) {
        self.parts = parts.to_vec();
    }

    fn iter_from(&self, position: usize) -> Draws<Vec<usize>> {
        let CostBalancedOptions { rank, replicas, global_batch, ref speeds, .. } = self.options;
        let speeds = if speeds.is_empty() { vec![1.0; replicas] } else { speeds.clone() };
        let steps = self.steps();
        let costs = self.costs.clone();
        let begin = position.saturating_sub(parts::start(&self.parts)).div_ceil(global_batch);
        let drawn = begin.saturating_mul(global_batch);
        let batches = self.batches(steps.samples.len().saturating_sub(drawn));
        Box::new((begin..begin + batches).map(move |step| {
            let samples = steps.step(step);
            let costs: Vec<f64> = samples.iter().map(|sample| costs.as_slice()[*sample]).collect();
            assign(&costs, &speeds)[rank].iter().map(|place| samples[*place]).collect()
        }))
    }
}
