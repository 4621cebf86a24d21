//! Trains a small convolutional net on handwritten digits, MNIST or CIFAR-10, on several ranks: `cargo run --release --example train`.
//!
//! Read [`train`]: it is an ordinary candle program but for the lines about `replica`, and it works the same under our
//! own launcher, mpirun and torchrun, over shared memory, TCP or threads. Held out, and never trained on, is every fifth
//! digit, or the test part of the other data sets.

use candle_core::{DType, Device, Module, Tensor};
use candle_nn::loss;
use clap::Parser;
use hexagram::algorithms::EngineOptions;
use hexagram::algorithms::checkpoint::{Checkpoints, Record};
use hexagram::physical::bootstrap::variable;
use hexagram::sampler::loader::{Array, DataLoader, LoaderOptions, LoaderState};
use hexagram::sampler::{DistributedOptions, DistributedSampler};
use hexagram::{Communicator, ReduceOp, World};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_examples::baseline;
use hexagram_examples::data::Images;
use hexagram_examples::metrics::{Epoch, Metrics, Step};
use hexagram_examples::net::{Net, correct, seeded};
use hexagram_examples::options::{Checked, Options, Precision, list};
use hexagram_examples::plot::Plot;
use hexagram_examples::progress::{Progress, note, say};
use hexagram_examples::report::{Report, bytes};
use hexagram_examples::start::{since_launch, start};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

type Failure = Box<dyn std::error::Error>;

pub(crate) fn main() -> ExitCode {
    let begun = SystemTime::now();
    let options = Options::parse();
    if options.algorithm == "list" {
        return if say(list().trim_end()).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let level = variable("HEXAGRAM_LOG").and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(tracing_subscriber::filter::LevelFilter::WARN))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .log_internal_errors(false)
        .init();
    let outcome = options.check().and_then(|checked| start(&checked, |world| train(&checked, world, begun)));
    outcome.unwrap_or_else(|error| {
        note(&format!("train: {error}"));
        ExitCode::FAILURE
    })
}

/// One rank of the training, from its first parameter to the report.
fn train(checked: &Checked, world: World, begun: SystemTime) -> Result<(), Failure> {
    let Checked { options, algorithm, data, .. } = checked;
    let comm = Communicator::open(&world, 0)?;
    agree(&comm, checked)?;
    let dtype = if options.dtype == Precision::F64 { DType::F64 } else { DType::F32 };
    let mut loader = share(&data.train, &world, options)?;
    let steps = loader.len().unwrap_or(0);

    // Here and in the two lines about `replica` below, this differs from a program for one process.
    let varmap = seeded(options.seed, dtype, data.shape)?;
    let engine = EngineOptions { optimizer: Some(checked.optimizer.optimizer()), ..EngineOptions::default() };
    let replica_options = ReplicaOptions { algorithm: algorithm.clone(), engine, dtype };
    let (net, mut replica) = Replica::build(&comm, &varmap, replica_options, |vb| Net::new(vb, data.shape))?;
    replica.set_learning_rate(checked.learning_rate);

    let mut log = Log::new(checked, &world, steps)?;
    if options.trace.is_some() {
        replica.trace()?;
    }
    let begin = if options.resume { resume(&mut replica, &mut loader, options)? } else { 0 };
    if let Some(folder) = &options.checkpoint {
        Checkpoints::new(folder).check(replica.engine())?;
    }
    (log.steps, log.resumed_at) = (replica.engine().steps(), replica.engine().steps());
    for epoch in begin..options.epochs {
        log.begin(epoch);
        let mut losses = Vec::with_capacity(steps);
        let (blocked_before, began) = (replica.engine().blocked(), Instant::now());
        let mut batches = loader.iter();
        while let Some(batch) = batches.next() {
            let (images, labels) = tensors(&batch?, dtype)?;
            replica.forward()?;
            let loss = loss::cross_entropy(&net.forward(&images)?, &labels)?;
            replica.step(&loss)?;
            losses.push(loss.to_dtype(DType::F64)?.to_scalar()?);
            log.step(&losses);
            if options.checkpoint.is_some() && replica.engine().steps().is_multiple_of(options.every) {
                save(&mut replica, batches.state(), options)?;
            }
        }
        if losses.is_empty() {
            // The last checkpoint was of the end of an epoch.
            continue;
        }
        if epoch + 1 == options.epochs && !replica.engine().steps().is_multiple_of(options.every) {
            save(&mut replica, batches.state(), options)?;
        }
        let spent = Spent { blocked: replica.engine().blocked() - blocked_before, steps: began.elapsed() };
        comm.blocking().all_reduce(&mut losses, ReduceOp::Mean)?;
        let accuracy = evaluate(&comm, &net, &data.held_out, dtype)?;
        log.end(&comm, &losses, accuracy, spent)?;
    }

    if replica.engine().steps() == log.resumed_at {
        log.nothing_left();
        return Ok(());
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
    log.finish(accuracy, identical, bytes_per_step, begun)?;
    if !identical && algorithm.keeps_replicas_identical() {
        return Err(format!("the replicas differ, which {} must not allow", algorithm.name()).into());
    }
    Ok(())
}

/// Refuses ranks that were started differently: they would hang, or train on overlapping shares.
fn agree(comm: &Communicator, checked: &Checked) -> Result<(), Failure> {
    const LENGTH: usize = 256;
    const LOOKED_AT: usize = 2000;
    let train = &checked.data.train;
    let singly = LoaderOptions { batch_size: None, ..LoaderOptions::default() };
    let mut ink = 0.0;
    for sample in DataLoader::unbatched(train.clone(), singly)?.iter().take(LOOKED_AT) {
        let (pixels, label) = sample?;
        ink += pixels.iter().zip(1..).map(|(pixel, at)| pixel * (at % 97) as f32).sum::<f32>() + label as f32;
    }
    let mut mine = checked.agreement().into_bytes();
    mine.extend_from_slice(format!(" --data of {} images ({ink})", train.len()).as_bytes());
    mine.resize(LENGTH, b' ');
    let mut all = vec![0; LENGTH * comm.size()];
    comm.blocking().all_gather(&mine, &mut all)?;
    let of = |rank: usize| String::from_utf8_lossy(&all[rank * LENGTH..][..LENGTH]).trim_end().to_owned();
    match (1..comm.size()).find(|rank| of(*rank) != of(0)) {
        Some(other) => {
            Err(format!("ranks differ: rank 0 has {}; rank {other} has {}", of(0), of(other)).into())
        }
        None => Ok(()),
    }
}

/// Saves the training, and where the loader stands.
fn save(replica: &mut Replica, state: LoaderState, options: &Options) -> Result<(), Failure> {
    let Some(folder) = &options.checkpoint else { return Ok(()) };
    let mut own = Record::default();
    let LoaderState { seed, epoch, position, order } = state;
    for (name, value) in [("seed", seed), ("epoch", epoch), ("position", position as u64), ("order", order)] {
        own.note(name, value);
    }
    replica.save(&Checkpoints::new(folder), own)?;
    Ok(())
}

/// Goes on from the newest checkpoint; returns the epoch to go on with.
fn resume(replica: &mut Replica, loader: &mut Loader, options: &Options) -> Result<u64, Failure> {
    let Some(folder) = &options.checkpoint else { return Ok(0) };
    let Some(own) = replica.load(&Checkpoints::new(folder))? else { return Ok(0) };
    let position: u64 = own.noted("position")?;
    let (seed, epoch, order) = (own.noted("seed")?, own.noted("epoch")?, own.noted("order")?);
    loader.resume(&LoaderState { seed, epoch, position: usize::try_from(position)?, order })?;
    Ok(epoch)
}

type Loader = DataLoader<(Array<f32>, Array<u32>)>;

/// Batches of the images that this rank trains on: an equal share of a new shuffle in each epoch.
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

/// Share of the held-out images that are recognized; each rank looks at some of them, each image is looked at once.
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

/// Where the time of some training steps went, on one rank.
#[derive(Clone, Copy, Default)]
struct Spent {
    blocked: Duration,
    steps: Duration,
}

/// What the run tells while it goes on: rank 0 prints and writes it, the others only contribute.
struct Log<'a> {
    checked: &'a Checked,
    world: &'a World,
    progress: Progress,
    /// On rank 0.
    metrics: Option<Metrics>,
    began: Instant,
    epoch: u64,
    /// When each step of the epoch ended.
    ended: Vec<Duration>,
    /// Of all ranks together, and all epochs.
    blocked_s: f64,
    steps_s: f64,
    samples: f64,
    /// Of each rank, through checkpoints.
    steps: u64,
    resumed_at: u64,
    /// What this rank sent before the first step.
    sent_before: u64,
    bytes: u64,
    loss: f64,
}

impl<'a> Log<'a> {
    fn new(checked: &'a Checked, world: &'a World, steps: usize) -> Result<Self, Failure> {
        let first = world.rank() == 0;
        let directory = checked.options.directory(world.size());
        let metrics = if first { Some(Metrics::create(directory)?) } else { None };
        let progress = Progress::new(world.rank(), steps as u64, false);
        let (began, ended) = (Instant::now(), Vec::new());
        let (epoch, steps_done, bytes) = (0, 0, 0);
        let (blocked_s, steps_s, samples, loss) = (0.0, 0.0, 0.0, f64::NAN);
        Ok(Log {
            checked,
            world,
            progress,
            metrics,
            began,
            epoch,
            ended,
            blocked_s,
            steps_s,
            samples,
            steps: steps_done,
            resumed_at: steps_done,
            sent_before: world.traffic().bytes_sent(),
            bytes,
            loss,
        })
    }

    fn begin(&mut self, epoch: u64) {
        self.epoch = epoch + 1;
        self.ended.clear();
        self.progress.epoch(format!("epoch {}/{}", self.epoch, self.checked.options.epochs));
    }

    fn step(&mut self, losses: &[f64]) {
        self.ended.push(self.began.elapsed());
        self.progress.step(losses.last().copied().unwrap_or(f64::NAN));
    }

    /// Gathers what all ranks spent and sent in the epoch, and tells it.
    fn end(
        &mut self,
        comm: &Communicator,
        losses: &[f64],
        accuracy: f64,
        spent: Spent,
    ) -> Result<(), Failure> {
        let sent = self.world.traffic().bytes_sent() - self.sent_before;
        let mut sums = [spent.blocked.as_secs_f64(), spent.steps.as_secs_f64(), sent as f64];
        comm.blocking().all_reduce(&mut sums, ReduceOp::Sum)?;
        let [blocked, steps, bytes_sent] = sums;
        let samples = (losses.len() * self.checked.options.batch * comm.size()) as f64;
        let first_step = self.steps + 1;
        self.loss = losses.iter().sum::<f64>() / losses.len() as f64;
        (self.blocked_s, self.steps_s) = (self.blocked_s + blocked, self.steps_s + steps);
        let bytes_before = std::mem::replace(&mut self.bytes, bytes_sent as u64);
        self.samples += samples;
        self.steps += losses.len() as u64;
        let epoch = Epoch {
            epoch: self.epoch,
            loss: self.loss,
            test_accuracy: accuracy,
            samples_per_s: samples * comm.size() as f64 / steps,
            comm_fraction: blocked / steps,
            bytes_sent: self.bytes - bytes_before,
            seconds: self.began.elapsed().as_secs_f64(),
        };
        self.progress.line(describe(&epoch, self.checked.options.epochs));
        if let Some(metrics) = &mut self.metrics {
            for (at, (loss, ended)) in losses.iter().zip(&self.ended).enumerate() {
                let step = first_step + at as u64;
                metrics.step(Step { epoch: self.epoch, step, loss: *loss, seconds: ended.as_secs_f64() })?;
            }
            metrics.epoch(epoch)?;
        }
        Ok(())
    }

    /// Tells that the checkpoint was of the end of the training.
    fn nothing_left(self) {
        let (steps, epochs) = (self.steps, self.checked.options.epochs);
        self.progress.line(format!(
            "train: the checkpoint is of step {steps}, the end of --epochs {epochs} already; give more to go on"
        ));
    }

    /// Tells the result, and draws the run.
    fn finish(
        mut self,
        test_accuracy: f64,
        replicas_identical: bool,
        bytes_per_step: f64,
        begun: SystemTime,
    ) -> Result<(), Failure> {
        let (options, ranks) = (&self.checked.options, self.world.size());
        let Some(metrics) = &mut self.metrics else { return Ok(()) };
        let report = Report {
            ranks,
            algorithm: options.algorithm.clone(),
            trigram: self.checked.algorithm.trigram().symbol(),
            optimizer: self.checked.optimizer.name().to_owned(),
            learning_rate: self.checked.learning_rate,
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
            wall_s: since_launch(begun).as_secs_f64(),
        };
        metrics.summary(&report.fields())?;
        let title = format!("{} on {ranks} ranks over {}", options.algorithm, options.transport);
        let directory = metrics.directory().to_owned();
        let plot = Plot { title: &title, steps: metrics.steps(), epochs: metrics.epochs() };
        plot.save(directory.join("plot.svg"))?;
        self.progress.finish();
        if options.json {
            say(&report.json().to_string())?;
        } else {
            say(&format!("{}\nmetrics.jsonl and plot.svg are in {}", report.text(), directory.display()))?;
        }
        Ok(())
    }
}

fn describe(epoch: &Epoch, epochs: u64) -> String {
    format!(
        "epoch {:>2}/{epochs}  loss {:.4}  accuracy {:.2} %  {:>6.0} samples/s  {:>4.1} % communication  {} sent",
        epoch.epoch,
        epoch.loss,
        100.0 * epoch.test_accuracy,
        epoch.samples_per_s,
        100.0 * epoch.comm_fraction,
        bytes(epoch.bytes_sent)
    )
}
