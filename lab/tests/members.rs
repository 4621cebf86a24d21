//! Trainings whose members change in place, on simulated clusters: ranks die, stop, leave and arrive at any time. Every
//! training ends, no sample is in two steps of it, and the steps equal those of an oracle that knows the members.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram::algorithms::testing::fitting;
use hexagram::algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, Mode, Parameter, Record, Sgd, Snapshots, registry,
};
use hexagram::logical::testing::is_deep;
use hexagram::physical::runtime;
use hexagram::physical::sim::{Cluster, Fault, FaultKind, Job, LinkSpec, Simulation};
use hexagram::sampler::dataset::Items;
use hexagram::sampler::loader::{DataLoader, LoaderOptions, LoaderState};
use hexagram::sampler::{BatchSampler, DistributedOptions, DistributedSampler, ForRank, Mersenne};
use hexagram::{Communicator, DType, Error, JoinOptions, Result, World};
use hexagram_lab::run::position;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const EPOCHS: u64 = 2;
const RATE: f64 = 0.1;
/// Mean virtual time of the backward pass of a step.
const COMPUTE: Duration = Duration::from_secs(1);

/// Change of the members, in one generation.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// A process ends.
    Death(usize),
    /// A process is stopped for longer than the others wait, and killed then.
    Stop(usize),
    /// A process ends after this number of steps, and leaves the others.
    Leave(usize, u64),
    /// A process is told after this number of steps that another one has arrived.
    Arrival(usize, u64),
}

impl Change {
    /// Returns the rank that is no member of the next generation.
    fn gone(self) -> Option<usize> {
        match self {
            Change::Death(rank) | Change::Stop(rank) | Change::Leave(rank, _) => Some(rank),
            Change::Arrival(..) => None,
        }
    }
}

/// A training with changes, drawn from a seed.
struct Plan {
    seed: u64,
    random: Mersenne,
    algorithm: AnyAlgorithm,
    samples: usize,
    batch: usize,
    most: usize,
}

/// Batches of each step of the training: epoch, and samples of each rank.
type Steps = Vec<(u64, Vec<Vec<usize>>)>;

/// Epoch and samples of one step, by rank.
type Drawn = BTreeMap<usize, (u64, Vec<usize>)>;

/// The records of one generation.
#[derive(Default)]
struct Generation {
    /// Step from which each rank continued.
    began: Mutex<BTreeSet<u64>>,
    /// Batches by step and rank.
    drawn: Mutex<BTreeMap<u64, Drawn>>,
    /// Newest step that a rank has made.
    made: AtomicU64,
    /// Parameters of the ranks that have finished the training.
    ends: Mutex<Vec<Vec<f32>>>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = Mersenne::new(seed);
        let mut below = |most: usize| random.below(most as u64) as usize;
        let algorithms: Vec<AnyAlgorithm> = registry::all();
        let named = |name: &str| registry::named(name).unwrap();
        let algorithm = match below(3) {
            0 => named(["gradient-allreduce", "bytegrad"][below(2)]),
            _ => algorithms[below(algorithms.len())].clone(),
        };
        let most = if below(50) == 0 { 64 } else { 2 + below(7) };
        let samples = most * (4 + below(20));
        let batch = 1 + below(3);
        Plan { seed, random, algorithm, samples, batch, most }
    }

    fn change(&mut self, members: usize) -> Option<Change> {
        let mut below = |most: usize| self.random.below(most as u64) as usize;
        let rank = below(members);
        let step = 1 + below(6) as u64;
        match below(5) {
            0 if members > 1 => Some(Change::Death(rank)),
            1 if members > 1 => Some(Change::Stop(rank)),
            2 if members > 1 => Some(Change::Leave(rank, step)),
            3 if members < self.most => Some(Change::Arrival(rank, step)),
            _ => None,
        }
    }

    /// Plays one generation. Returns the members of the next; `None` if the training has ended.
    fn play(
        &mut self,
        members: Vec<Option<Snapshots>>,
        change: Option<Change>,
        generation: &Generation,
    ) -> Option<Vec<Option<Snapshots>>> {
        let simulation = self.simulation(members.len(), change);
        let options = JoinOptions { deadline: Duration::from_secs(15), ..Job::default().options };
        let job = Job { options, limit: Duration::from_secs(20_000), ..Job::default() };
        let members: Vec<Mutex<Option<Snapshots>>> = members.into_iter().map(Mutex::new).collect();
        let rank = |world: World| {
            let mut snapshots = members[world.rank()].lock().unwrap().take().unwrap_or_default();
            let result = self.train(&world, &mut snapshots, change, generation);
            *members[world.rank()].lock().unwrap() = Some(snapshots);
            result
        };
        let played = simulation.play(&job, rank).unwrap();
        let seed = self.seed;
        let gone = change.and_then(Change::gone);
        let ends = played.outcome.results.iter().enumerate().filter(|(rank, _)| Some(*rank) != gone);
        let ends: Vec<_> = ends
            .map(|(rank, end)| end.as_ref().unwrap_or_else(|| panic!("seed {seed}: rank {rank} hangs")))
            .collect();
        if ends.iter().all(|end| end.result.is_ok()) {
            return None;
        }
        let errors = ends.iter().filter_map(|end| end.result.as_ref().err());
        let errors: Vec<String> = errors.map(Error::to_string).collect();
        assert!(change.is_some(), "seed {seed}: ranks end without a change: {errors:?}");
        let mut next: Vec<Option<Snapshots>> = Vec::new();
        for (rank, member) in members.into_iter().enumerate().filter(|(rank, _)| Some(*rank) != gone) {
            let snapshots = member.into_inner().unwrap();
            assert!(snapshots.is_some(), "seed {seed}: rank {rank} has lost its memory");
            next.push(snapshots);
        }
        if matches!(change, Some(Change::Arrival(..))) || next.is_empty() {
            next.push(None);
        }
        Some(next)
    }

    /// Returns the simulation of one generation.
    fn simulation(&mut self, ranks: usize, change: Option<Change>) -> Simulation {
        let at = Duration::from_millis(500 + self.random.below(8000));
        let faults = match change {
            Some(Change::Death(rank)) => vec![Fault { at, kind: FaultKind::RankDies(rank) }],
            Some(Change::Stop(rank)) => vec![Fault { at, kind: FaultKind::RankStops(rank) }],
            _ => Vec::new(),
        };
        let link = LinkSpec::new(1.25e9, Duration::from_micros(20));
        let hosts = if ranks.is_multiple_of(2) { ranks / 2 } else { ranks };
        let cluster = Cluster::flat(ranks, hosts, link, link).unwrap();
        let seed = self.random.below(1 << 30);
        Simulation { seed, shuffled: true, faults, ..Simulation::new(cluster) }
    }

    /// Trains as one rank of a generation.
    fn train(
        &self,
        world: &World,
        snapshots: &mut Snapshots,
        change: Option<Change>,
        generation: &Generation,
    ) -> Result<()> {
        world.set_deadline(Duration::from_secs(20));
        let comm = Communicator::open(world, 0)?;
        let mut engine = self.engine(&comm)?;
        let mut loader = self.loader(&comm);
        if let Some(own) = snapshots.load(&mut engine)? {
            loader.resume(&position::noted(&own).unwrap()).unwrap();
        }
        generation.began.lock().unwrap().insert(engine.steps());
        let mut made = 0;
        for epoch in loader.state().epoch..EPOCHS {
            let mut batches = loader.iter();
            while let Some(batch) = batches.next() {
                if leaves(world, change, made)? {
                    return Ok(());
                }
                let batch = batch.unwrap();
                let mut drawn = generation.drawn.lock().unwrap();
                let of_step = drawn.entry(engine.steps() + 1).or_default();
                of_step.insert(world.rank(), (epoch, batch.clone()));
                drop(drawn);
                let time = self.time(world.rank(), engine.steps());
                step(&mut engine, &batch, time)?;
                generation.made.fetch_max(engine.steps(), Ordering::Relaxed);
                let state = batches.state();
                snapshots.keep(&mut engine, || record(&state))?;
                made += 1;
            }
        }
        engine.settle()?;
        comm.blocking().barrier()?;
        generation.ends.lock().unwrap().push(engine.values::<f32>(0)?);
        Ok(())
    }

    fn engine(&self, comm: &Communicator) -> Result<DataParallel> {
        let parameter = Parameter { name: "x".into(), dtype: DType::F32, shape: vec![3, 4] };
        let optimizer = Some(fitting(&self.algorithm, Arc::new(Sgd::default())));
        let options = EngineOptions { optimizer, ..EngineOptions::default() };
        let mut engine = DataParallel::new(comm, vec![parameter], self.algorithm.clone(), options)?;
        engine.set_learning_rate(RATE);
        Ok(engine)
    }

    /// Returns the time of the backward pass of a step, which differs between ranks.
    fn time(&self, rank: usize, step: u64) -> Duration {
        let share = (rank as u64 * 31 + step * 17 + self.seed) % 16;
        COMPUTE / 2 + COMPUTE * share as u32 / 16
    }

    fn loader(&self, comm: &Communicator) -> DataLoader<Vec<usize>> {
        let of_rank = DistributedOptions::for_rank(comm.rank(), comm.size());
        let options = DistributedOptions { len: self.samples, seed: self.seed, drop_last: true, ..of_rank };
        let batches = BatchSampler::new(DistributedSampler::new(options).unwrap(), self.batch, true).unwrap();
        let options = LoaderOptions {
            batch_sampler: Some(Box::new(batches)),
            seed: self.seed,
            ..LoaderOptions::default()
        };
        let items = Items((0..self.samples).collect());
        DataLoader::with_collate(items, options, |samples, _| Ok(samples)).unwrap()
    }
}

/// Returns true if this rank leaves after this number of steps.
///
/// # Errors
/// If it is told then that another one has arrived.
fn leaves(world: &World, change: Option<Change>, made: u64) -> Result<bool> {
    let is_now = |rank, step| (rank, step) == (world.rank(), made);
    match change {
        Some(Change::Arrival(rank, step)) if is_now(rank, step) => {
            world.health().fail_self("continues with a new member");
            Err(Error::usage("a member arrives", "continue"))
        }
        Some(Change::Leave(rank, step)) => Ok(is_now(rank, step)),
        _ => Ok(false),
    }
}

/// The value of a sample, towards which it pulls the parameters.
fn value(sample: usize) -> f64 {
    (sample * 37 % 101) as f64 / 50.0 - 1.0
}

fn mean(batch: &[usize]) -> f64 {
    batch.iter().map(|sample| value(*sample)).sum::<f64>() / batch.len() as f64
}

fn step(engine: &mut DataParallel, batch: &[usize], time: Duration) -> Result<()> {
    engine.step_with(|engine| {
        let values = engine.values::<f32>(0)?;
        engine.forward()?;
        engine.begin(Mode::Synchronize)?;
        runtime::sleep(time);
        let pull = mean(batch) as f32;
        engine.hooks().ready_slice(0, &values.iter().map(|x| x - pull).collect::<Vec<f32>>())
    })
}

fn record(state: &LoaderState) -> Record {
    let mut record = Record::default();
    position::note(&mut record, state);
    record
}

/// Trains with changes to the end. Returns all steps that count, and the parameters of the last members.
fn trained(plan: &mut Plan) -> (Steps, Vec<Vec<f32>>) {
    let mut steps: Steps = Vec::new();
    let mut newest = 0;
    let first = 1 + plan.random.below(plan.most as u64) as usize;
    let mut members: Vec<Option<Snapshots>> = (0..first).map(|_| None).collect();
    for number in 0.. {
        assert!(number < 200, "seed {}: the training does not end", plan.seed);
        let change = plan.change(members.len());
        let generation = Generation::default();
        let next = plan.play(members, change, &generation);
        let began = generation.began.into_inner().unwrap();
        assert!(began.len() <= 1, "seed {}: ranks continue from different steps: {began:?}", plan.seed);
        if let Some(began) = began.first() {
            assert!(*began as usize <= steps.len());
            let is_in_step = plan.algorithm.keeps_replicas_identical() && !plan.algorithm.written().settle;
            let lost = newest - began;
            let most = if is_in_step { 1 } else { 32 };
            assert!(lost <= most, "seed {}: {lost} steps are lost", plan.seed);
            newest = generation.made.into_inner().max(*began);
            steps.truncate(*began as usize);
            for (step, ranks) in generation.drawn.into_inner().unwrap() {
                assert_eq!(step as usize, steps.len() + 1, "seed {}", plan.seed);
                let epochs: BTreeSet<u64> = ranks.values().map(|(epoch, _)| *epoch).collect();
                assert_eq!(epochs.len(), 1, "seed {}: ranks are in different epochs", plan.seed);
                let batches = ranks.into_values().map(|(_, batch)| batch).collect();
                steps.push((*epochs.first().unwrap(), batches));
            }
        }
        match next {
            Some(next) => members = next,
            None => return (steps, generation.ends.into_inner().unwrap()),
        }
    }
    unreachable!()
}

fn check(seed: u64) {
    let mut plan = Plan::new(seed);
    let (steps, ends) = trained(&mut plan);
    let name = plan.algorithm.name();
    for epoch in 0..EPOCHS {
        let of_epoch = steps.iter().filter(|(of, _)| *of == epoch);
        let drawn: Vec<usize> = of_epoch.flat_map(|(_, ranks)| ranks.concat()).collect();
        let different: BTreeSet<usize> = drawn.iter().copied().collect();
        assert_eq!(different.len(), drawn.len(), "seed {seed}, {name}: a sample is in two steps");
        let left = plan.samples - drawn.len();
        assert!(
            left < plan.most * plan.batch + plan.most,
            "seed {seed}, {name}: {left} samples are left out"
        );
    }
    assert!(ends.iter().flatten().all(|x| x.is_finite()), "seed {seed}, {name}");
    if plan.algorithm.keeps_replicas_identical() {
        assert!(ends.iter().all(|end| *end == ends[0]), "seed {seed}, {name}: the replicas differ");
    }
    if name == "gradient-allreduce" {
        let pull =
            |ranks: &[Vec<usize>]| ranks.iter().map(|batch| mean(batch)).sum::<f64>() / ranks.len() as f64;
        let wanted = steps.iter().fold(0.0, |x, (_, ranks)| x - RATE * (x - pull(ranks)));
        for x in ends.iter().flatten() {
            assert!((f64::from(*x) - wanted).abs() < 1e-4, "seed {seed}: {x}, not {wanted}");
        }
    }
}

#[test]
fn trainings_continue_through_deaths_stops_departures_and_arrivals() {
    for seed in 0..if is_deep() { 10_000 } else { 40 } {
        check(seed);
    }
}
