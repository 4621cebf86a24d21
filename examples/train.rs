//! Trains a small convolutional net on handwritten digits, MNIST or CIFAR-10, on several ranks: `cargo run --release --example train`.
//!
//! Read [`train`]: it is an ordinary candle program but for the lines about `replica`, and it works the same under our
//! own launcher, mpirun and torchrun, over shared memory, TCP or threads. Held out, and never trained on, is every fifth
//! digit, or the test part of the other data sets.

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::loss;
use hexagram::algorithms::engine::Evaluation;
use hexagram::algorithms::{LearningRate, Registry};
use hexagram::physical::stdout::print;
use hexagram::sampler::loader::{Array, DataLoader, LoaderOptions};
use hexagram::sampler::{DistributedOptions, DistributedSampler};
use hexagram::{Communicator, ReduceOp, World};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_examples::Failure;
use hexagram_examples::baseline;
use hexagram_examples::data::Images;
use hexagram_examples::made_with::{MadeWith, differing};
use hexagram_examples::metrics::{Epoch, Metrics, Step};
use hexagram_examples::net::{Net, correct, seeded};
use hexagram_examples::options::{Checked, Options, Precision};
use hexagram_examples::plot::Plot;
use hexagram_examples::progress::{Progress, failure, options};
use hexagram_examples::report::Report;
use hexagram_examples::saves::{Resumed, Saves};
use hexagram_examples::start::{since_launch, start};
use hexagram_lab::program::say::bytes;
use hexagram_lab::program::{information, prepare};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

pub(crate) fn main() -> ExitCode {
    let begun = SystemTime::now();
    let options: Options = match options("train") {
        Ok(options) => options,
        Err(code) => return code,
    };
    match information(&Registry::built_in(), &options.algorithm) {
        Some(Ok(text)) => {
            return print(&text).map_or_else(|error| error.report("train"), |()| ExitCode::SUCCESS);
        }
        Some(Err(error)) => return failure("train", &error),
        None => {}
    }
    if let Err(code) = prepare("") {
        return code;
    }
    let outcome = options.check().and_then(|checked| start(&checked, |world| train(&checked, world, begun)));
    outcome.unwrap_or_else(|error| failure("train", &*error))
}

/// Runs one rank of the training, from its first parameter to the report; returns what to exit with.
fn train(checked: &Checked, world: World, begun: SystemTime) -> Result<ExitCode, Failure> {
    let Checked { options, algorithm, data, .. } = checked;
    let comm = Communicator::open(&world, 0)?;
    let mut loader = share(&data.train, &world, options)?;
    let steps = loader.len().unwrap_or(0);
    let rate = checked.schedule(steps as u64)?;
    let made_with = MadeWith::of(checked, rate)?;
    agree(&comm, &format!("{} {}", made_with.text(), checked.agreement()))?;
    let mut saves = Saves::new(options, made_with);
    let dtype = if options.dtype == Precision::F64 { DType::F64 } else { DType::F32 };

    // Here and in the two lines about `replica` below, this differs from a program for one process.
    let varmap = seeded(options.seed, dtype, data.shape)?;
    let replica_options =
        ReplicaOptions { algorithm: algorithm.clone(), engine: checked.stepper.engine(), dtype };
    let (net, mut replica) = Replica::build(&comm, &varmap, replica_options, |vb| Net::new(vb, data.shape))?;

    let mut log = Log::new(checked, &world, (steps, rate))?;
    if options.trace.is_some() {
        replica.trace()?;
    }
    let mut resumed = Resumed::default();
    if options.resume {
        resumed = saves.resume(&mut replica, &mut loader, options.change)?;
        log.changed(&resumed.changed);
    }
    // After resuming: a learning rate that has changed goes before the one that was saved.
    replica.set_learning_rate(rate);
    saves.check(&replica)?;
    log.steps = replica.engine().steps();
    log.resumed_at = log.steps;
    log.sent_before = world.traffic().payload_sent();
    for epoch in resumed.epoch..options.epochs {
        log.begin(epoch);
        let mut losses = Vec::with_capacity(steps);
        let blocked_before = replica.engine().telemetry().blocked();
        let began = Instant::now();
        let mut batches = loader.iter();
        while let Some(batch) = batches.next() {
            let (images, labels) = tensors(&batch?, dtype)?;
            let forward =
                || -> Result<Tensor, Failure> { Ok(loss::cross_entropy(&net.forward(&images)?, &labels)?) };
            let loss = replica.step_with(forward)?;
            losses.push(loss.to_dtype(DType::F64)?.to_scalar()?);
            log.step(&losses, replica.engine().metrics());
            if saves.is_due(replica.engine().steps(), false) {
                log.warn(saves.save(&mut replica, batches.state())?);
            }
        }
        if losses.is_empty() {
            // The last checkpoint was of the end of an epoch.
            continue;
        }
        if epoch + 1 == options.epochs && saves.is_due(replica.engine().steps(), true) {
            log.warn(saves.save(&mut replica, batches.state())?);
        }
        let mut spent = Spent {
            blocked: replica.engine().telemetry().blocked() - blocked_before,
            steps: began.elapsed(),
            bytes: 0,
        };
        if !algorithm.trigram().synchronous {
            // What is under way is the algorithm's traffic, and not the evaluation's.
            replica.settle()?;
        }
        spent.bytes = log.sent();
        comm.blocking().all_reduce(&mut losses, ReduceOp::Mean)?;
        let evaluation = replica.evaluate_mean(|| evaluate(&comm, &net, &data.held_out, dtype))?;
        log.end(&comm, &losses, evaluation, spent)?;
    }

    if replica.engine().steps() == log.resumed_at {
        log.nothing_left();
        return Ok(ExitCode::SUCCESS);
    }
    // Only rank 0 gets one.
    if let (Some(file), Some(trace)) = (&options.trace, replica.collect()?) {
        trace.save(file)?;
        log.progress.line(format!("{}\n{} is the trace", trace.report(), file.display()));
    }
    let identical = replica.is_identical()?;
    replica.average()?;
    let accuracy = evaluate(&comm, &net, &data.held_out, dtype)?;
    let bytes_per_step = baseline::bytes_per_step(&comm, &varmap)?;
    let code = log.finish(&saves, accuracy, identical, bytes_per_step, begun)?;
    if !identical && algorithm.keeps_replicas_identical() {
        return Err(format!("the replicas differ, which {} must not allow", algorithm.name()).into());
    }
    Ok(code)
}

/// Refuses ranks that were started differently: they would hang, or train on overlapping shares.
fn agree(comm: &Communicator, mine: &str) -> Result<(), Failure> {
    const LENGTH: usize = 8192;
    let mut padded = mine.as_bytes().to_vec();
    padded.resize(LENGTH, b' ');
    let mut all = vec![0; LENGTH * comm.size()];
    comm.blocking().all_gather(&padded, &mut all)?;
    let of = |rank: usize| String::from_utf8_lossy(&all[rank * LENGTH..][..LENGTH]).trim_end().to_owned();
    match (1..comm.size()).find(|rank| of(*rank) != of(0)) {
        Some(other) => {
            let [first, second] = differing(&of(0), &of(other));
            Err(format!("ranks differ: rank 0 has {first}; rank {other} has {second}").into())
        }
        None => Ok(()),
    }
}

type Loader = DataLoader<(Array<f32>, Array<u32>)>;

/// Returns a loader of the images that this rank trains on: an equal share of a new shuffle in each epoch.
fn share(train: &Images, world: &World, options: &Options) -> Result<Loader, Failure> {
    let sampler = DistributedSampler::new(DistributedOptions {
        len: train.len(),
        replicas: world.size(),
        rank: world.rank(),
        seed: options.seed,
        drop_last: true,
        ..DistributedOptions::default()
    })?;
    Ok(DataLoader::new(
        train.clone(),
        LoaderOptions {
            sampler: Some(Box::new(sampler)),
            batch_size: Some(options.batch),
            seed: options.seed,
            drop_last: true,
            workers: options.workers,
            persistent_workers: options.workers > 0,
            ..LoaderOptions::default()
        },
    )?)
}

fn tensors(batch: &(Array<f32>, Array<u32>), dtype: DType) -> candle_core::Result<(Tensor, Tensor)> {
    let (images, labels) = batch;
    let images = Tensor::from_slice(images, images.shape().to_vec(), &Device::Cpu)?.to_dtype(dtype)?;
    Ok((images, Tensor::from_slice(labels, labels.len(), &Device::Cpu)?))
}

/// Returns the share of the held-out images that are recognized; each rank looks at some of them, each image is looked
/// at once.
fn evaluate(comm: &Communicator, net: &Net, held_out: &Images, dtype: DType) -> Result<f64, Failure> {
    const BATCH: usize = 256;
    let sampler = DistributedSampler::new(DistributedOptions {
        len: held_out.len(),
        replicas: comm.size(),
        rank: comm.rank(),
        shuffle: false,
        exact: true,
        ..DistributedOptions::default()
    })?;
    let options = LoaderOptions {
        sampler: Some(Box::new(sampler)),
        batch_size: Some(BATCH),
        ..LoaderOptions::default()
    };
    let mut count = [0i64];
    for batch in DataLoader::new(held_out.clone(), options)?.iter() {
        let (images, labels) = tensors(&batch?, dtype)?;
        count[0] += i64::from(correct(net, &images, &labels)?);
    }
    comm.blocking().all_reduce(&mut count, ReduceOp::Sum)?;
    Ok(count[0] as f64 / held_out.len() as f64)
}

/// Time and bytes of some training steps on one rank, by use.
#[derive(Clone, Copy, Default)]
struct Spent {
    blocked: Duration,
    steps: Duration,
    /// Bytes that this rank sent.
    bytes: u64,
}

/// Reporter of the run while it goes on: rank 0 prints and writes, the others only contribute.
struct Log<'a> {
    checked: &'a Checked,
    world: &'a World,
    progress: Progress,
    /// On rank 0.
    metrics: Option<Metrics>,
    /// True if figures, or the picture, could not be kept.
    is_lost: bool,
    began: Instant,
    epoch: u64,
    /// Time at which each step of the epoch ended, and what the algorithm gave out in it.
    ended: Vec<(Duration, BTreeMap<String, f64>)>,
    /// Seconds of all ranks together, and all epochs.
    blocked_s: f64,
    steps_s: f64,
    samples: f64,
    rate: LearningRate,
    /// Number of steps of each rank, through checkpoints.
    steps: u64,
    resumed_at: u64,
    /// Bytes that this rank sent before the epoch, or for what is not training.
    sent_before: u64,
    /// Bytes of all ranks and epochs.
    bytes: u64,
    loss: f64,
}

impl<'a> Log<'a> {
    fn new(
        checked: &'a Checked,
        world: &'a World,
        (steps, rate): (usize, LearningRate),
    ) -> Result<Self, Failure> {
        let first = world.rank() == 0;
        let directory = checked.options.directory(world.size());
        let metrics = if first { Some(Metrics::create(directory)?) } else { None };
        let progress = Progress::new(world.rank(), steps as u64, false);
        let began = Instant::now();
        let ended = Vec::new();
        let epoch = 0;
        let steps_done = 0;
        let bytes = 0;
        let blocked_s = 0.0;
        let steps_s = 0.0;
        let samples = 0.0;
        let loss = f64::NAN;
        Ok(Log {
            checked,
            world,
            progress,
            metrics,
            is_lost: false,
            began,
            epoch,
            ended,
            blocked_s,
            steps_s,
            samples,
            rate,
            steps: steps_done,
            resumed_at: steps_done,
            sent_before: world.traffic().payload_sent(),
            bytes,
            loss,
        })
    }

    fn begin(&mut self, epoch: u64) {
        self.epoch = epoch + 1;
        self.ended.clear();
        self.progress.epoch(format!("epoch {}/{}", self.epoch, self.checked.options.epochs));
    }

    fn step(&mut self, losses: &[f64], metrics: &BTreeMap<String, f64>) {
        self.ended.push((self.began.elapsed(), metrics.clone()));
        self.progress.step(losses.last().copied().unwrap_or(f64::NAN));
    }

    /// Gathers what all ranks spent and sent in the epoch, and tells it.
    fn end(
        &mut self,
        comm: &Communicator,
        losses: &[f64],
        evaluation: Evaluation<f64>,
        spent: Spent,
    ) -> Result<(), Failure> {
        let mut sums = [spent.blocked.as_secs_f64(), spent.steps.as_secs_f64(), spent.bytes as f64];
        comm.blocking().all_reduce(&mut sums, ReduceOp::Sum)?;
        let [blocked, steps, bytes_sent] = sums;
        let samples = (losses.len() * self.checked.options.batch * comm.size()) as f64;
        let first_step = self.steps + 1;
        self.loss = losses.iter().sum::<f64>() / losses.len() as f64;
        self.blocked_s += blocked;
        self.steps_s += steps;
        self.bytes += bytes_sent as u64;
        self.samples += samples;
        self.steps += losses.len() as u64;
        let epoch = Epoch {
            epoch: self.epoch,
            loss: self.loss,
            test_accuracy: evaluation.result,
            consensus_distance: evaluation.consensus_distance,
            samples_per_s: samples * comm.size() as f64 / steps,
            comm_fraction: blocked / steps,
            bytes_sent: bytes_sent as u64,
            seconds: self.began.elapsed().as_secs_f64(),
        };
        self.progress.line(describe(&epoch, self.checked.options.epochs));
        let kept = self.metrics.as_mut().map_or(Ok(()), |metrics| {
            let mut kept = Ok(());
            for (at, (loss, (ended, given))) in losses.iter().zip(&self.ended).enumerate() {
                let step = first_step + at as u64;
                let learning_rate = self.rate.at(step - 1);
                let seconds = ended.as_secs_f64();
                let epoch = self.epoch;
                let step = Step { epoch, step, loss: *loss, learning_rate, seconds, metrics: given.clone() };
                kept = kept.and(metrics.step(step));
            }
            kept.and(metrics.epoch(epoch))
        });
        self.lost(kept.err());
        // The evaluation's traffic is none of the training's.
        self.sent_before = self.world.traffic().payload_sent();
        Ok(())
    }

    /// Returns the bytes that this rank sent since the epoch began.
    fn sent(&self) -> u64 {
        self.world.traffic().payload_sent() - self.sent_before
    }

    /// Says once that figures are lost, which ends no training.
    fn lost(&mut self, error: Option<impl std::fmt::Display>) {
        let Some(error) = error else { return };
        if !std::mem::replace(&mut self.is_lost, true) {
            self.progress.line(format!("train: {error}; the training goes on"));
        }
    }

    /// Says what a resumed training does otherwise than before.
    fn changed(&self, differences: &[String]) {
        if !differences.is_empty() {
            self.progress.line(format!("train: goes on with a change: {}", differences.join("; ")));
        }
    }

    /// Says that something has failed, without which the training goes on.
    fn warn(&self, warning: Option<String>) {
        warning.into_iter().for_each(|warning| self.progress.line(warning));
    }

    /// Tells that the checkpoint was of the end of the training.
    fn nothing_left(self) {
        let steps = self.steps;
        let epochs = self.checked.options.epochs;
        self.progress.line(format!(
            "train: the checkpoint is of step {steps}, the end of --epochs {epochs} already; give more to go on"
        ));
    }

    /// Tells the result, and draws the run; returns what to exit with.
    fn finish(
        mut self,
        saves: &Saves,
        test_accuracy: f64,
        replicas_identical: bool,
        bytes_per_step: f64,
        begun: SystemTime,
    ) -> Result<ExitCode, Failure> {
        let options = &self.checked.options;
        let ranks = self.world.size();
        // The others have nothing to tell.
        let Some(mut metrics) = self.metrics.take() else { return Ok(ExitCode::SUCCESS) };
        let report = Report {
            ranks,
            algorithm: options.algorithm.clone(),
            trigram: self.checked.algorithm.trigram().symbol(),
            optimizer: self.checked.stepper.optimizer.spelled(),
            learning_rate: self.checked.stepper.learning_rate,
            transport: options.transport.clone(),
            epochs: options.epochs,
            test_accuracy,
            final_loss: self.loss,
            samples_per_s: self.samples * ranks as f64 / self.steps_s,
            steps_per_s: self.samples / options.batch as f64 / self.steps_s,
            bytes_sent: self.bytes,
            bytes_of_gradient_all_reduce: (bytes_per_step * (self.steps - self.resumed_at) as f64) as u64,
            comm_fraction: self.blocked_s / self.steps_s,
            replicas_identical,
            failed_saves: saves.failed(),
            wall_s: since_launch(begun).as_secs_f64(),
        };
        let summarized = metrics.summary(&report.fields());
        self.lost(summarized.err());
        let title = format!("{} on {ranks} ranks over {}", options.algorithm, options.transport);
        let directory = metrics.directory().to_owned();
        let plot = Plot { title: &title, steps: metrics.steps(), epochs: metrics.epochs() };
        self.lost(plot.save(directory.join("plot.svg")).err());
        self.warn(saves.summary());
        let told = match options.json {
            true => report.json().to_string(),
            false => {
                format!("{}\nmetrics.jsonl and plot.svg are in {}", report.text(), directory.display())
            }
        };
        let is_kept = !self.is_lost && !saves.lacks_the_last();
        self.progress.finish();
        Ok(match print(&told) {
            Err(error) => error.report("train"),
            Ok(()) if is_kept => ExitCode::SUCCESS,
            Ok(()) => ExitCode::FAILURE,
        })
    }
}

fn describe(epoch: &Epoch, epochs: u64) -> String {
    format!(
        "epoch {:>2}/{epochs}  loss {:.4}  accuracy {:.2} %  apart {:.3}  {:>6.0} samples/s  {:>4.1} % communication  {} sent",
        epoch.epoch,
        epoch.loss,
        100.0 * epoch.test_accuracy,
        epoch.consensus_distance,
        epoch.samples_per_s,
        100.0 * epoch.comm_fraction,
        bytes(epoch.bytes_sent)
    )
}
