//! One run with one sampler: all ranks train the same model, and each notes how long it computed and how long it waited
//! for the others.

use crate::model::Model;
use crate::text::Text;
use hexagram::launch::{as_rank, as_threads};
use hexagram::sampler::dataset::{Cause, Dataset};
use hexagram::sampler::loader::{DataLoader, LoaderOptions};
use hexagram::sampler::{
    Complexities, CostBalancedOptions, CostBalancedSampler, DistributedOptions, DistributedSampler,
    LoadBalancingDistributedSampler, LoadBalancingOptions,
};
use hexagram::{Communicator, ReduceOp, World};
use std::time::{Duration, Instant};

const RATE: f32 = 0.5;

/// Way in which lines are given to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// PyTorch's `DistributedSampler`: at random.
    Distributed,
    /// Bagua's `LoadBalancingDistributedSampler`: lines of similar length in the same step.
    LoadBalancing,
    /// Steps in which the lines of all ranks have equal total lengths.
    CostBalanced,
}

impl Method {
    /// All methods, in the order of the report.
    pub(crate) const ALL: [Method; 3] = [Method::Distributed, Method::LoadBalancing, Method::CostBalanced];

    /// Returns the name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Distributed => "distributed",
            Method::LoadBalancing => "load-balancing",
            Method::CostBalanced => "cost-balanced",
        }
    }
}

/// Settings that all runs have in common.
pub(crate) struct Setting<'a> {
    pub(crate) text: &'a Text,
    pub(crate) costs: &'a Complexities,
    pub(crate) ranks: usize,
    /// Lines per rank and step; on average, if they are balanced by cost.
    pub(crate) batch: usize,
    pub(crate) epochs: usize,
    pub(crate) seed: u64,
    /// Time per character of a simulated device of the rank; `None` to compute on this machine's cores.
    pub(crate) device: Option<Duration>,
}

/// Record of one rank in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Characters predicted.
    pub(crate) cost: f64,
    /// Time for the batch, gradient included.
    pub(crate) computed: Duration,
    /// Time in the all-reduce: until the slowest rank came, mostly.
    pub(crate) waited: Duration,
    /// Mean over all ranks, nats per character.
    pub(crate) loss: f32,
}

/// Trains on all ranks, as threads of this process; gives the steps of each.
///
/// # Errors
///
/// The error that kept a rank from training.
pub(crate) fn run(setting: &Setting<'_>, method: Method) -> Result<Vec<Vec<Step>>, Cause> {
    let rank = |world: World| {
        as_rank(world, |world| train(setting, method, &world)).map_err(|error: Cause| error.to_string())
    };
    let ended: Result<Vec<_>, String> = as_threads(setting.ranks, rank)?.into_iter().collect();
    Ok(ended?)
}

fn train(setting: &Setting<'_>, method: Method, world: &World) -> Result<Vec<Step>, Cause> {
    let comm = Communicator::open(world, 0)?;
    let options = options(setting, method, world.rank())?;
    // Lines have different lengths: a batch is a list of them.
    let mut loader = DataLoader::with_collate(setting.text.lines.clone(), options, |lines, _| Ok(lines))?;
    let mut model = Model::new(setting.text.characters, setting.seed);
    let mut steps = Vec::new();
    for _ in 0..setting.epochs {
        for batch in loader.iter() {
            steps.push(step(setting, &comm, &mut model, &batch?)?);
        }
    }
    Ok(steps)
}

/// Returns the sampler's options: the only lines that differ between samplers.
fn options(setting: &Setting<'_>, method: Method, rank: usize) -> Result<LoaderOptions, Cause> {
    let &Setting { costs, ranks: replicas, batch, seed, .. } = setting;
    let common = LoaderOptions { workers: 1, persistent_workers: true, seed, ..LoaderOptions::default() };
    let by_sampler = LoaderOptions { batch_size: Some(batch), drop_last: true, ..common };
    Ok(match method {
        Method::Distributed => {
            let len = setting.text.lines.len();
            let drop_last = true;
            let options = DistributedOptions { len, replicas, rank, seed, drop_last, ..Default::default() };
            LoaderOptions { sampler: Some(Box::new(DistributedSampler::new(options)?)), ..by_sampler }
        }
        Method::LoadBalancing => {
            let options =
                LoadBalancingOptions { replicas, rank, seed, drop_last: true, ..Default::default() };
            let sampler = LoadBalancingDistributedSampler::new(costs.clone(), options)?;
            LoaderOptions { sampler: Some(Box::new(sampler)), ..by_sampler }
        }
        Method::CostBalanced => {
            let global_batch = batch * replicas;
            let options = CostBalancedOptions { replicas, rank, global_batch, seed, ..Default::default() };
            let sampler = CostBalancedSampler::new(costs.clone(), options)?;
            LoaderOptions {
                batch_size: Some(1),
                drop_last: false,
                batch_sampler: Some(Box::new(sampler)),
                ..by_sampler
            }
        }
    })
}

/// Makes a step. Gradients are summed and divided by the characters of all ranks, so every character has the same
/// weight on any rank.
fn step(
    setting: &Setting<'_>,
    comm: &Communicator,
    model: &mut Model,
    lines: &[Vec<u8>],
) -> Result<Step, Cause> {
    let began = Instant::now();
    let size = model.size();
    let mut sums = vec![0.0; size + 2];
    for line in lines {
        sums[size] += model.backward(line, &mut sums[..size]);
        sums[size + 1] += (line.len() - 1) as f32;
    }
    let cost = f64::from(sums[size + 1]);
    if let Some(per_character) = setting.device {
        // Simulates a device of this rank: the time passes, and the core is free for others.
        std::thread::sleep(per_character.mul_f64(cost).saturating_sub(began.elapsed()));
    }
    let computed = began.elapsed();
    comm.blocking().all_reduce(&mut sums, ReduceOp::Sum)?;
    let waited = began.elapsed() - computed;
    let loss = sums[size];
    let characters = sums[size + 1];
    sums.truncate(size);
    sums.iter_mut().for_each(|sum| *sum /= characters);
    model.descend(&sums, RATE);
    Ok(Step { cost, computed, waited, loss: loss / characters })
}
