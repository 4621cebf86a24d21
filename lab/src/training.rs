//! One training: an algorithm on a task, with ranks as threads of a world in virtual time.
//!
//! Ranks take turns, so that a training runs on one processor and like any other of its kind, also where the algorithm is
//! asynchronous: a step takes each rank the same virtual time, in which messages travel. Replicas are copied out of the
//! ranks between two steps and judged after the training, so that judging them neither sends nor changes anything.

use crate::outcome::{Outcome, Snapshot, own, point};
use crate::random::Random;
use crate::task::{Task, Values};
use hexagram::algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, Mode, Optimizer, Order, Sgd,
};
use hexagram::physical::runtime::{self, VirtualTime};
use hexagram::sampler::Partition;
use hexagram::{Buffer, Communicator, Error, Result, World};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Everything that a training follows from.
#[derive(Debug, Clone)]
pub struct Training {
    /// Model and data.
    pub task: Arc<dyn Task>,
    /// Algorithm by which ranks communicate.
    pub algorithm: AnyAlgorithm,
    /// Optimizer that steps with what the algorithm leaves of the gradients.
    pub optimizer: Arc<dyn Optimizer>,
    /// Learning rate γ.
    pub learning_rate: f64,
    /// Number of ranks.
    pub ranks: usize,
    /// Way in which the training samples are divided among ranks.
    pub partition: Partition,
    /// Seed of the initial values, the partition and the batches; its low 32 bits count.
    pub seed: u64,
    /// Steps of each rank.
    pub steps: u64,
    /// Number of intervals between states that are recorded, at least 1.
    pub records: u64,
    /// Virtual time of a step's passes, in which background messages travel. A message takes about 1 ms.
    pub compute: Duration,
}

impl Training {
    /// Creates a training of a task by synchronous SGD with 4 ranks, equal shares and a learning rate of 0.1.
    pub fn of(task: Arc<dyn Task>) -> Self {
        Training {
            task,
            algorithm: GradientAllReduce.into(),
            optimizer: Arc::new(Sgd::default()),
            learning_rate: 0.1,
            ranks: 4,
            partition: Partition::Equal,
            seed: 0,
            steps: 100,
            records: 10,
            compute: Duration::from_millis(10),
        }
    }

    fn check(&self) -> Result<()> {
        if self.records == 0 || self.steps < self.records {
            let what = format!("{} states cannot be recorded of {} steps", self.records, self.steps);
            return Err(Error::usage(what, "record at least one, and at most one a step"));
        }
        Ok(())
    }

    /// Returns true if the state after a number of steps is recorded.
    fn records_at(&self, step: u64) -> bool {
        // The first step at or after each multiple of steps / records.
        (step * self.records) % self.steps < self.records
    }
}

/// Runs a training, and returns what was recorded.
///
/// # Errors
/// [`Error::Usage`] if the samples cannot be divided so, or no state is to be recorded; errors of the algorithm.
pub fn train(training: &Training) -> Result<Outcome> {
    training.check()?;
    let labels = training.task.labels();
    let shares = training.partition.shares(labels, training.ranks, training.seed);
    let shares = shares.map_err(|error| Error::usage(error.to_string(), "choose another partition"))?;
    let snapshots = VirtualTime::run(|| run(training, shares))?;
    let steps = (0..=training.steps).filter(|step| training.records_at(*step));
    let state = |(at, step): (usize, u64)| {
        let ranks: Vec<&Snapshot> = snapshots.iter().map(|rank| &rank[at]).collect();
        point(step, &ranks, |values| training.task.evaluate(values))
    };
    let curve = steps.enumerate().map(state).collect();
    let own = own(&snapshots, |values| training.task.evaluate(values));
    Ok(Outcome { curve, own, synchronous: training.algorithm.trigram().synchronous })
}

/// Runs all ranks, each as a thread of this virtual world; returns their snapshots, by rank.
fn run(training: &Training, shares: Vec<Vec<usize>>) -> Result<Vec<Vec<Snapshot>>> {
    let (results, result) = channel();
    for (world, share) in World::threads(training.ranks)?.into_iter().zip(shares) {
        let results = results.clone();
        let training = training.clone();
        let work = move || {
            let rank = world.rank();
            let outcome = Communicator::open(&world, 0).and_then(|comm| {
                let trained = Rank::new(&training, &comm, share).and_then(|mut rank| rank.train());
                trained.inspect_err(|error| comm.give_up(error))
            });
            // Fails only if nobody waits any more.
            let _ = results.send((rank, outcome));
        };
        runtime::spawn("hexagram-rank", work)?;
    }
    drop(results);
    let mut found = Vec::new();
    let mut cause: Option<Error> = None;
    while let Ok((rank, outcome)) = runtime::receive(&result) {
        match outcome {
            Ok(snapshots) => found.push((rank, snapshots)),
            Err(error) if cause.as_ref().is_none_or(tells_of_another) => cause = Some(error),
            Err(_) => {}
        }
    }
    if let Some(error) = cause {
        return Err(error);
    }
    found.sort_by_key(|(rank, _)| *rank);
    Ok(found.into_iter().map(|(_, snapshots)| snapshots).collect())
}

/// Returns true if an error is the consequence of another rank's.
fn tells_of_another(error: &Error) -> bool {
    matches!(error, Error::PeerFailed { .. } | Error::Poisoned { .. })
}

/// One rank of a training.
struct Rank<'a> {
    training: &'a Training,
    engine: DataParallel,
    parameters: usize,
    share: Vec<usize>,
    random: Random,
}

impl<'a> Rank<'a> {
    fn new(training: &'a Training, comm: &Communicator, share: Vec<usize>) -> Result<Self> {
        let options = EngineOptions {
            optimizer: Some(Arc::clone(&training.optimizer)),
            order: Order::Listed,
            ..EngineOptions::default()
        };
        let parameters = training.task.parameters();
        let count = parameters.len();
        let mut engine = DataParallel::new(comm, parameters, training.algorithm.clone(), options)?;
        engine.set_learning_rate(training.learning_rate);
        for (at, values) in training.task.initial(training.seed).iter().enumerate() {
            engine.set_parameter(at, &Buffer::from_slice(values)?)?;
        }
        // Ranks draw different batches.
        let random = Random::new(training.seed.wrapping_mul(1009).wrapping_add(comm.rank() as u64 + 1));
        Ok(Rank { training, engine, parameters: count, share, random })
    }

    fn train(&mut self) -> Result<Vec<Snapshot>> {
        let mut snapshots = vec![self.snapshot()?];
        for step in 1..=self.training.steps {
            self.step()?;
            if step == self.training.steps {
                self.engine.settle()?;
            }
            if self.training.records_at(step) {
                snapshots.push(self.snapshot()?);
            }
        }
        Ok(snapshots)
    }

    fn step(&mut self) -> Result<()> {
        let samples = self.batch();
        let training = self.training;
        let count = self.parameters;
        let mut first = None;
        self.engine.step_with(|engine| {
            let values = values(engine, count)?;
            engine.forward()?;
            runtime::sleep(training.compute);
            let mut gradients: Vec<(usize, Vec<f32>)> = Vec::with_capacity(count);
            let mut ready = |parameter: usize, gradient: &[f32]| {
                gradients.push((parameter, gradient.to_vec()));
                Ok(())
            };
            let loss = training.task.gradient(&values, &samples, &mut ready)?;
            engine.set_loss(*first.get_or_insert(loss));
            engine.begin(Mode::Synchronize)?;
            let hooks = engine.hooks();
            gradients.iter().try_for_each(|(parameter, gradient)| hooks.ready_slice(*parameter, gradient))
        })
    }

    /// Draws a batch of this rank's samples, with replacement.
    fn batch(&mut self) -> Vec<usize> {
        match self.training.task.batch() {
            None => self.share.clone(),
            Some(size) => (0..size).map(|_| self.share[self.random.below(self.share.len())]).collect(),
        }
    }

    fn values(&self) -> Result<Values> {
        values(&self.engine, self.parameters)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let traffic = self.engine.communicator().world().traffic();
        Ok(Snapshot {
            values: self.values()?,
            bytes: traffic.bytes_sent(),
            messages: traffic.messages_sent(),
        })
    }
}

/// Returns the values of all parameters of a replica.
fn values(engine: &DataParallel, parameters: usize) -> Result<Values> {
    (0..parameters).map(|parameter| engine.values(parameter)).collect()
}
