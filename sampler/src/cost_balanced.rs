//! Batches that take all ranks equally long, also when samples differ a hundredfold and ranks differ in speed.
//!
//! ```text
//! sort     samples by cost (1 + random_level u), with u from 0 to 1 drawn for each sample and epoch
//! row      B neighbours in this order, for a global batch of B, cut into `mix` pieces
//! step     one piece of each kind, each from another row chosen at random
//! assign   the step's samples, the costliest first, each to the rank that would finish it first:
//!          the least (load + cost) / speed; then exchanged as long as that shortens the step
//! ```
//!
//! One costly sample therefore comes with others like it, and the cheap ones of the same step even out the rest.

use crate::assign::assign;
use crate::complexity::Complexities;
use crate::elastic::check_step;
use crate::error::{SamplerError, check_entries};
use crate::keyed::{KeyedPermutation, mixed};
use crate::load_balancing::check_level;
use crate::radix::ascending;
use crate::ranks::{Tail, check_ranks, for_rank};
use crate::sampler::{Draws, Sampler, fingerprint};

/// Options of a [`CostBalancedSampler`] besides the cost of each sample.
///
/// All ranks must agree on everything but `rank`.
#[derive(Debug, Clone, PartialEq)]
pub struct CostBalancedOptions {
    /// Number of ranks that share the data set. It has no default: `..comm.sampling()` names it and the rank.
    pub replicas: usize,
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of samples in one step, on all ranks together; at least one for each. The more there are for each, the
    /// better they can be balanced: with eight or more, ranks differ by some percent at most.
    pub global_batch: usize,
    /// Speeds of the ranks, in cost per time; empty if all are equally fast.
    pub speeds: Vec<f64>,
    /// True if steps are made at random; otherwise they are consecutive samples of the data set, which then may not be
    /// balanced if one costs more than all others of its step.
    pub shuffle: bool,
    /// Seed of the order, together with `epoch`.
    pub seed: u64,
    /// Number of the first epoch.
    pub epoch: u64,
    /// Treatment of the samples that do not fill a step.
    pub tail: Tail,
    /// Number of kinds of cost in a step, if there are as many samples. 1: all samples of a step cost about the same;
    /// the more kinds, the more alike are steps, and the less balanced are those with the costliest samples.
    pub mix: usize,
    /// Randomness, from 0 to 1: how much costs are blurred, each epoch anew, so that not always the same samples come
    /// together.
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

/// One rank's batches of steps that take all ranks equally long.
///
/// Ranks have unequally many samples in a step: whoever averages over ranks should weigh each by how many it has. All
/// ranks have equally many batches, none of them empty, but for [`Tail::Exact`].
///
/// The samples of a step do not depend on the number of ranks or their speeds, so that an epoch can go on with others.
/// An epoch takes `36 len` bytes while it is sorted, `4 len` afterwards, and a step time proportional to the global
/// batch times ranks. Deterministic.
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
}

impl CostBalancedSampler {
    /// Creates the sampler, if the options are sound. The cost of a sample is the time it takes, in any unit.
    ///
    /// # Errors
    ///
    /// [`SamplerError`] when there are no replicas, `rank` is not one of them, speeds are not positive or not one for
    /// each rank, a step has fewer samples than ranks, `random_level` is not from 0 to 1, `mix` is 0, or [`Tail::Drop`]
    /// would drop everything.
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
            let remedy = "make a step of at least one kind of samples";
            return Err(SamplerError::BadNumber { option: "mix", value: 0.0, remedy });
        }
        Ok(CostBalancedSampler { costs, options })
    }

    /// Returns the number of batches of this rank from `position` on.
    fn batches(&self, position: usize) -> usize {
        let CostBalancedOptions { rank, global_batch, tail, .. } = self.options;
        let left = tail.left(self.costs.len(), position, global_batch);
        left / global_batch + usize::from(rank < left % global_batch)
    }

    /// Returns the order of the current epoch.
    fn steps(&self) -> Steps {
        let CostBalancedOptions { global_batch, shuffle, seed, epoch, tail, mix, random_level, .. } =
            self.options;
        let costs = self.costs.as_slice();
        let len = costs.len();
        let count = tail.left(len, 0, global_batch);
        if !shuffle {
            let samples = (0..count).map(|place| (place % len) as u32).collect();
            return Steps { samples, rows: None, global_batch };
        }
        // Which samples are left out, repeated or in the last, smaller step is random.
        let shuffled = KeyedPermutation::new(len, seed, epoch);
        let order: Vec<u32> = (0..count).map(|place| shuffled.at(place) as u32).collect();
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
        Steps { samples, rows: Some((1..=mix.min(global_batch) as u64).map(choose).collect()), global_batch }
    }
}

/// The samples of all steps of an epoch.
struct Steps {
    samples: Vec<u32>,
    /// For each piece of a step, the row it comes from.
    rows: Option<Vec<KeyedPermutation>>,
    global_batch: usize,
}

impl Steps {
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
        let CostBalancedOptions { global_batch, shuffle, seed, tail, mix, random_level, .. } = self.options;
        let costs = self.costs.as_slice().iter().map(|cost| cost.to_bits());
        let tail = tail as u64;
        let flags = [global_batch as u64, shuffle.into(), seed, tail, mix as u64, random_level.to_bits()];
        fingerprint("cost balanced", flags.into_iter().chain(costs))
    }

    fn iter_from(&self, position: usize) -> Draws<Vec<usize>> {
        let CostBalancedOptions { rank, replicas, global_batch, ref speeds, .. } = self.options;
        let speeds = if speeds.is_empty() { vec![1.0; replicas] } else { speeds.clone() };
        let steps = self.steps();
        let costs = self.costs.clone();
        let begin = position.div_ceil(global_batch);
        let batches = self.batches(begin.saturating_mul(global_batch));
        Box::new((begin..begin + batches).map(move |step| {
            let samples = steps.step(step);
            let costs: Vec<f64> = samples.iter().map(|sample| costs.as_slice()[*sample]).collect();
            assign(&costs, &speeds)[rank].iter().map(|place| samples[*place]).collect()
        }))
    }
}
