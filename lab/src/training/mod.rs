//! One training: an algorithm on a task, with ranks as threads of a world in virtual time, or with the ranks of a
//! communicator.
//!
//! In virtual time ranks take turns, so a training runs on one processor and is reproducible, also with an
//! asynchronous algorithm. A step takes each rank the same virtual time, in which messages travel. Replicas are
//! copied out of the ranks between two steps and evaluated after the training, so evaluation neither sends nor
//! changes anything.

#[cfg(feature = "programs")]
mod on_cluster;

#[cfg(feature = "programs")]
pub use on_cluster::{OnCluster, SimulatedTraining, train_on_cluster};

use crate::outcome::{Snapshot, StepRecord, TrainingOutcome, gathered, own, point};
use crate::random::Random;
use crate::task::{ModelValues, Task};
use crate::virtual_ranks::in_virtual_time;
use hexagram::algorithms::{
    AnyAlgorithm, DataParallel, EngineOptions, GradientAllReduce, LearningRate, Members, Mode, Optimizer,
    Order, ParameterGroup, Sgd, optimizer,
};
use hexagram::physical::device::DeviceChoice;
use hexagram::physical::runtime;
use hexagram::physical::transport::Traffic;
use hexagram::sampler::Partition;
use hexagram::{Buffer, Communicator, Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Everything that a training follows from.
#[derive(Debug, Clone)]
pub struct Training {
    /// Model and data.
    pub task: Arc<dyn Task>,
    /// Algorithm by which ranks communicate.
    pub algorithm: AnyAlgorithm,
    /// Optimizer that applies the algorithm's gradients; `None` for the algorithm's default optimizer, or else plain
    /// SGD.
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// Learning rate γ, a number or a schedule.
    pub learning_rate: LearningRate,
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
    /// Virtual time of a step's passes, during which background messages travel. A message takes about 1 ms.
    pub compute: Duration,
    /// Device of the replicas. The task still computes on the host. Default: the host.
    pub device: DeviceChoice,
    /// True to communicate within each host first, as [`EngineOptions::hierarchical`]. Default: false.
    pub hierarchical: bool,
}

impl Training {
    /// Creates a training of a task by synchronous SGD with 4 ranks, equal shares and a learning rate of 0.1.
    pub fn of(task: Arc<dyn Task>) -> Self {
        Training {
            task,
            algorithm: GradientAllReduce.into(),
            optimizer: None,
            learning_rate: 0.1.into(),
            ranks: 4,
            partition: Partition::Equal,
            seed: 0,
            steps: 100,
            records: 10,
            compute: Duration::from_millis(10),
            device: DeviceChoice::default(),
            hierarchical: false,
        }
    }

    /// Refuses a training without ranks or steps, or of which no state can be recorded.
    pub(crate) fn check(&self) -> Result<()> {
        for (name, number) in [("ranks", self.ranks as u64), ("steps", self.steps)] {
            if number == 0 {
                let what = format!("a training of 0 {name} is not possible");
                return Err(Error::usage(what, format!("use 1 or more {name}")));
            }
        }
        if self.records == 0 || self.steps < self.records {
            let what = format!("cannot record {} states in {} steps", self.records, self.steps);
            return Err(Error::usage(what, "record at least one, and at most one per step"));
        }
        Ok(())
    }

    /// Returns the engine's options.
    pub(crate) fn engine(&self) -> Result<EngineOptions> {
        let named = self.algorithm.optimizers().by_default().map(optimizer::named).transpose()?;
        let optimizer = self.optimizer.clone().or(named).unwrap_or_else(|| Arc::new(Sgd::default()));
        let hierarchical = self.hierarchical;
        let options = EngineOptions { groups: groups(), order: Order::Listed, ..EngineOptions::default() };
        Ok(EngineOptions { optimizer: Some(optimizer), hierarchical, ..options })
    }

    /// Divides the training samples among the ranks.
    pub(crate) fn shares(&self) -> Result<Vec<Vec<usize>>> {
        let shares = self.partition.shares(self.task.labels(), self.ranks, self.seed);
        shares.map_err(|error| Error::usage(error.to_string(), "choose a different partition"))
    }

    /// Evaluates the records of all ranks.
    fn outcome_of(&self, ranks: Vec<RankHistory>) -> TrainingOutcome {
        let (snapshots, taken): (Vec<_>, Vec<_>) =
            ranks.into_iter().map(|recorded| (recorded.snapshots, recorded.taken)).unzip();
        self.outcome(&snapshots, taken.into_iter().next().unwrap_or_default())
    }

    /// Evaluates the snapshots of all ranks; the steps are rank 0's.
    fn outcome(&self, ranks: &[Vec<Snapshot>], taken: Vec<StepRecord>) -> TrainingOutcome {
        let steps = (0..=self.steps).filter(|step| self.records_at(*step));
        let state = |(at, step): (usize, u64)| {
            let ranks: Vec<&Snapshot> = ranks.iter().map(|rank| &rank[at]).collect();
            point(step, &ranks, |values| self.task.evaluate(values))
        };
        let curve = steps.enumerate().map(state).collect();
        let own = own(ranks, |values| self.task.evaluate(values));
        let replicas = ranks.iter().flat_map(|rank| rank.last()).map(Snapshot::hash).collect();
        let synchronous = self.algorithm.trigram().synchronous;
        TrainingOutcome { curve, own, synchronous, steps: taken, replicas }
    }

    /// Returns true if the state after a number of steps is recorded.
    fn records_at(&self, step: u64) -> bool {
        // The first step at or after each multiple of steps / records.
        (step * self.records) % self.steps < self.records
    }
}

/// Runs a training in virtual time, and returns its record.
///
/// # Errors
/// [`Error::Usage`] if the samples cannot be divided in this way, or no state would be recorded; errors of the
/// algorithm.
pub fn train(training: &Training) -> Result<TrainingOutcome> {
    training.check()?;
    let shares = training.shares()?;
    let own = training.clone();
    let ran = in_virtual_time(training.ranks, move |comm| record(&own, comm, &shares, &|_, _| {}))?;
    Ok(training.outcome_of(ran))
}

/// Runs this rank's part of a training on the ranks of a communicator, over any transport. On rank 0,
/// returns the record. A collective call. The communicator's number of ranks counts, and a step takes its real time.
///
/// # Errors
/// As [`train`].
pub fn train_on(comm: &Communicator, training: &Training) -> Result<Option<TrainingOutcome>> {
    let training = Training { ranks: comm.size(), compute: Duration::ZERO, ..training.clone() };
    training.check()?;
    // Some transports have their own collectives, and count no messages for them.
    let rank =
        TrainingRank::new(&training, comm, training.shares()?[comm.rank()].clone(), Traffic::payload_sent)?;
    let RankHistory { snapshots, taken } = rank.train(&|_, _| {})?;
    let ranks = gathered(comm, &snapshots)?;
    Ok((comm.rank() == 0).then(|| training.outcome(&ranks, taken)))
}

/// Runs this rank's part of a training.
fn record(
    training: &Training,
    comm: &Communicator,
    shares: &[Vec<usize>],
    watch: &dyn Fn(u64, f64),
) -> Result<RankHistory> {
    TrainingRank::new(training, comm, shares[comm.rank()].clone(), Traffic::bytes_sent)?.train(watch)
}

/// Returns the parameter groups of every training: biases and norms, which do not decay.
pub(crate) fn groups() -> Vec<ParameterGroup> {
    vec![ParameterGroup { weight_decay: 0.0, ..ParameterGroup::of(Members::Vectors) }]
}

/// States and steps of one rank.
struct RankHistory {
    snapshots: Vec<Snapshot>,
    taken: Vec<StepRecord>,
}

/// Count of the bytes that a rank has sent.
type CountBytes = fn(&Traffic) -> u64;

/// One rank of a training.
struct TrainingRank<'a> {
    training: &'a Training,
    engine: DataParallel,
    parameters: usize,
    share: Vec<usize>,
    random: Random,
    /// Time at which the first step begins.
    began: runtime::Instant,
    /// Bytes and messages that this rank has sent before the training.
    sent_before: [u64; 2],
    /// Returns the bytes that a rank has sent.
    sent: CountBytes,
    /// Steps so far.
    taken: Vec<StepRecord>,
}

impl<'a> TrainingRank<'a> {
    fn new(training: &'a Training, comm: &Communicator, share: Vec<usize>, sent: CountBytes) -> Result<Self> {
        let traffic = comm.world().traffic();
        let sent_before = [sent(traffic), traffic.messages_sent()];
        let queue = training.device.queue(comm.world().local_rank())?;
        let options = EngineOptions { queue, ..training.engine()? };
        let parameters = training.task.parameters();
        let count = parameters.len();
        let mut engine = DataParallel::new(comm, parameters, training.algorithm.clone(), options)?;
        engine.set_learning_rate(training.learning_rate);
        for (at, values) in training.task.initial(training.seed).iter().enumerate() {
            engine.set_parameter(at, &Buffer::from_slice(values)?)?;
        }
        // Ranks draw different batches.
        let random = Random::new(training.seed.wrapping_mul(1009).wrapping_add(comm.rank() as u64 + 1));
        let began = runtime::now();
        let taken = Vec::new();
        Ok(TrainingRank {
            training,
            engine,
            parameters: count,
            share,
            random,
            began,
            sent_before,
            sent,
            taken,
        })
    }

    /// Makes all steps. The algorithm's threads end with its engine.
    fn train(mut self, watch: &dyn Fn(u64, f64)) -> Result<RankHistory> {
        let mut snapshots = vec![self.snapshot()?];
        for step in 1..=self.training.steps {
            self.step()?;
            if step == self.training.steps {
                self.engine.settle()?;
            }
            if self.training.records_at(step) {
                let snapshot = self.snapshot()?;
                watch(step, snapshot.seconds);
                snapshots.push(snapshot);
            }
        }
        Ok(RankHistory { snapshots, taken: self.taken })
    }

    fn step(&mut self) -> Result<()> {
        let samples = self.batch();
        let training = self.training;
        let count = self.parameters;
        let mut first = None;
        let learning_rate = self.engine.learning_rate().unwrap_or(f64::NAN);
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
        })?;
        let step = self.taken.len() as u64 + 1;
        let loss = first.unwrap_or(f64::NAN);
        let metrics = self.engine.metrics().clone();
        self.taken.push(StepRecord { step, loss, learning_rate, metrics });
        Ok(())
    }

    /// Draws a batch of this rank's samples, with replacement.
    fn batch(&mut self) -> Vec<usize> {
        match self.training.task.batch() {
            None => self.share.clone(),
            Some(size) => (0..size).map(|_| self.share[self.random.below(self.share.len())]).collect(),
        }
    }

    fn values(&self) -> Result<ModelValues> {
        values(&self.engine, self.parameters)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let traffic = self.engine.communicator().world().traffic();
        let [bytes, messages] = self.sent_before;
        Ok(Snapshot {
            values: self.values()?,
            bytes: (self.sent)(traffic) - bytes,
            messages: traffic.messages_sent() - messages,
            seconds: self.began.elapsed().as_secs_f64(),
        })
    }
}

/// Returns the values of all parameters of a replica.
pub(crate) fn values(engine: &DataParallel, parameters: usize) -> Result<ModelValues> {
    (0..parameters).map(|parameter| engine.values(parameter)).collect()
}
