//! A small training in which faults happen.

use super::plan::FaultPlan;
use crate::program::ChosenAlgorithm;
use crate::program::arguments::optimizer_args;
use hexagram::algorithms::{DataParallel, EngineOptions, Mode, Parameter};
use hexagram::logical::testing::all_or_cause;
use hexagram::physical::runtime;
use hexagram::physical::sim::{Cluster, Ended, Flaw, Job, LinkSpec, Simulation};
use hexagram::{Communicator, DType, Error, JoinOptions, Result, World};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Steps of a training.
const STEPS: u64 = 5;
/// Time of the backward pass of a step.
const COMPUTE: Duration = Duration::from_secs(2);
/// Longest time in which nothing of an operation moves.
const DEADLINE: Duration = Duration::from_secs(20);
/// Longest time to meet.
const JOINING: Duration = Duration::from_secs(15);
/// Time at which a rank that still runs hangs: no deadline is as late.
pub(super) const LIMIT: Duration = Duration::from_secs(240);
/// Sizes of the parameters, in buckets of one each.
const SHAPES: [&[usize]; 3] = [&[8, 6], &[10], &[7]];

/// Hashes of a rank's replica, after each of its steps.
pub(super) type Hashes = Vec<u64>;

/// Cluster and algorithm of a training without faults, and whether ranks of a host communicate with each other first.
type ReferenceKey = (usize, usize, usize, bool);

/// Algorithms to train with, and their replicas after a training without faults.
pub(super) struct FaultStage {
    pub(super) algorithms: Vec<ChosenAlgorithm>,
    references: Mutex<HashMap<ReferenceKey, Arc<Vec<Hashes>>>>,
}

/// One training.
pub(super) struct FaultScene<'a> {
    pub(super) stage: &'a FaultStage,
    pub(super) plan: &'a FaultPlan,
    /// Flaw of the library to find.
    pub(super) flaw: Option<Flaw>,
    pub(super) is_logged: bool,
}

/// A training that was played.
pub(super) struct Play {
    /// By rank; `None` for one that hung.
    pub(super) ends: Vec<Option<Ended<()>>>,
    /// By rank.
    pub(super) replicas: Vec<Hashes>,
    pub(super) events: u64,
    pub(super) log: Vec<String>,
}

impl FaultStage {
    /// Creates a stage.
    ///
    /// # Errors
    /// [`Error::Usage`] without an algorithm.
    pub(super) fn new(algorithms: Vec<ChosenAlgorithm>) -> Result<Self> {
        if algorithms.is_empty() {
            let what = "--faults needs synchronous algorithms, and --algorithm names none";
            return Err(Error::usage(what, "name some, or `all`"));
        }
        Ok(FaultStage { algorithms, references: Mutex::default() })
    }

    /// Returns the replicas of a plan in which nothing goes wrong.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn reference(&self, plan: &FaultPlan) -> Result<Arc<Vec<Hashes>>> {
        let key = (plan.algorithm, plan.ranks, plan.hosts, plan.is_hierarchical);
        let known = || self.references.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&key) {
            return Ok(Arc::clone(found));
        }
        let scene = FaultScene { stage: self, plan: &plan.undisturbed(), flaw: None, is_logged: false };
        let play = scene.play()?;
        all_or_cause(play.ends.into_iter().flatten().map(|end| end.result))?;
        let replicas = Arc::new(play.replicas);
        known().insert(key, Arc::clone(&replicas));
        Ok(replicas)
    }
}

impl FaultScene<'_> {
    /// Trains until all ranks have ended.
    ///
    /// # Errors
    /// Those of a simulation.
    pub(super) fn play(&self) -> Result<Play> {
        let FaultPlan { ranks, hosts, .. } = *self.plan;
        let between = LinkSpec::new(1.25e8, Duration::from_micros(100));
        let within = LinkSpec::new(1.25e9, Duration::from_micros(5));
        let simulation = Simulation {
            seed: self.plan.seed,
            shuffled: true,
            faults: self.plan.faults.clone(),
            ..Simulation::new(Cluster::flat(ranks, hosts, between, within)?)
        };
        let options = JoinOptions { deadline: JOINING, ..Job::default().options };
        let job = Job { options, limit: LIMIT, logged: self.is_logged, flaw: self.flaw };
        let replicas: Mutex<Vec<Hashes>> = Mutex::new(vec![Vec::new(); ranks]);
        let engine = self.engine()?;
        let played = simulation.play(&job, |world| self.train(&world, &engine, &replicas))?;
        let replicas = replicas.into_inner().unwrap_or_else(PoisonError::into_inner);
        let outcome = played.outcome;
        Ok(Play { ends: outcome.results, replicas, events: outcome.events, log: played.log })
    }

    fn engine(&self) -> Result<EngineOptions> {
        let algorithm = &self.stage.algorithms[self.plan.algorithm].algorithm;
        let optimizer = optimizer_args::named(algorithm.optimizers().by_default().unwrap_or("sgd"), None)?;
        Ok(EngineOptions {
            optimizer: Some(optimizer),
            hierarchical: self.plan.is_hierarchical,
            bucket_bytes: 1,
            first_bucket_bytes: 1,
            ..EngineOptions::default()
        })
    }

    /// Trains as one rank.
    fn train(&self, world: &World, engine: &EngineOptions, replicas: &Mutex<Vec<Hashes>>) -> Result<()> {
        world.set_deadline(DEADLINE);
        let comm = Communicator::open(world, 0)?;
        let rank = world.rank();
        let parameter = |(number, shape): (usize, &&[usize])| Parameter {
            name: format!("w{number}"),
            dtype: DType::F32,
            shape: shape.to_vec(),
        };
        let parameters = SHAPES.iter().enumerate().map(parameter).collect();
        let algorithm = self.stage.algorithms[self.plan.algorithm].algorithm.clone();
        let mut engine = DataParallel::new(&comm, parameters, algorithm, engine.clone())?;
        engine.set_learning_rate(0.05);
        for step in 0..STEPS {
            engine.step_with(|engine| pass(engine, step, rank))?;
            let hash = hash(&engine)?;
            replicas.lock().unwrap_or_else(PoisonError::into_inner)[rank].push(hash);
        }
        engine.settle()?;
        let last = hash(&engine)?;
        replicas.lock().unwrap_or_else(PoisonError::into_inner)[rank].push(last);
        Ok(())
    }
}

/// Makes a forward and a backward pass.
fn pass(engine: &mut DataParallel, step: u64, rank: usize) -> Result<()> {
    let gradients = (0..SHAPES.len()).map(|number| {
        let values = engine.values::<f32>(number)?;
        let gradient = |(at, value): (usize, &f32)| {
            let noise = (at * 7 + rank * 3 + step as usize * 5 + number) % 11;
            0.1 * value + (noise as f32 - 5.0) * 0.01
        };
        Ok(values.iter().enumerate().map(gradient).collect::<Vec<f32>>())
    });
    let gradients = gradients.collect::<Result<Vec<_>>>()?;
    engine.forward()?;
    engine.set_loss(1.0 + rank as f64 * 0.125);
    engine.begin(Mode::Synchronize)?;
    let hooks = engine.hooks();
    for (number, gradient) in gradients.iter().enumerate().rev() {
        runtime::sleep(COMPUTE / SHAPES.len() as u32);
        hooks.ready_slice(number, gradient)?;
    }
    Ok(())
}

/// Returns a hash of a replica.
fn hash(engine: &DataParallel) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for number in 0..SHAPES.len() {
        for value in engine.values::<f32>(number)? {
            value.to_bits().hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

impl Play {
    /// Returns true if a rank has ended with an error.
    pub(super) fn has_error(&self) -> bool {
        self.ends.iter().flatten().any(|end| end.result.is_err())
    }

    /// Returns lines about how the ranks have ended.
    pub(super) fn describe(&self) -> impl Iterator<Item = String> {
        self.ends.iter().enumerate().map(|(rank, end)| match end {
            None => format!("rank {rank} has not ended\n"),
            Some(Ended { result: Ok(()), at }) => format!("rank {rank} finished at {at:?}\n"),
            Some(Ended { result: Err(error), at }) => format!("rank {rank} ended at {at:?}: {error}\n"),
        })
    }
}
