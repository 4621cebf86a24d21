//! Trains a small convolutional net on handwritten digits or MNIST, or ResNet-50 on CIFAR-10, on several ranks: `cargo
//! run --release --example train`.
//!
//! Read [`train`] and [`Run::steps`]: they are an ordinary candle program but for the lines about `replica`, and work
//! the same under our own launcher, mpirun and torchrun, over shared memory, TCP or threads. Held out, and never
//! trained on, is every fifth digit, or the test part of the other data sets.

use candle_core::{DType, Device, Tensor};
use candle_nn::{ModuleT, VarMap, loss};
use hexagram::algorithms::{EngineOptions, Registry};
use hexagram::physical::stdout::print;
use hexagram::sampler::loader::{Array, Collate, DataLoader, LoaderOptions, Memory};
use hexagram::sampler::{DistributedOptions, DistributedSampler};
use hexagram::{Communicator, Pinned, Queue, ReduceOp, Upload, Uploaded, Uploads, World};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_examples::Failure;
use hexagram_examples::baseline;
use hexagram_examples::data::Images;
use hexagram_examples::device::Place;
use hexagram_examples::log::{Judged, Log, Spent};
use hexagram_examples::made_with::{MadeWith, differing};
use hexagram_examples::model::{Parts, correct, seeded};
use hexagram_examples::options::{Checked, Options, Precision};
use hexagram_examples::progress::{failure, options};
use hexagram_examples::saves::{Resumed, Saves};
use hexagram_examples::start::start;
use hexagram_lab::program::{information, prepare};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

pub(crate) fn main() -> ExitCode {
    let begun = SystemTime::now();
    let options: Options = match options("train") {
        Ok(options) => options,
        Err(code) => return code,
    };
    match information(&Registry::built_in(), &options.algorithm, options.stepping.optimizer.as_deref()) {
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
    let Place { device, queue } = Place::open(options.device, world.local_rank())?;
    let copies = queue.another()?;
    let loader = share(&options.model.shown(&data.train, data.shape), &world, (options, &copies))?;
    let steps = loader.len().unwrap_or(0);
    let rate = checked.schedule(steps as u64)?;
    let made_with = MadeWith::of(checked, rate)?;
    agree(&comm, &format!("{} {}", made_with.text(), checked.agreement()))?;
    let dtype = if options.dtype == Precision::F64 { DType::F64 } else { DType::F32 };
    let varmap = seeded(options.seed, (dtype, &device), |vb| options.model.build(vb, data.shape))?;

    // Here, and where `replica` steps in `Run::steps`, this differs from a program for one process.
    let engine = EngineOptions { queue, ..checked.engine() };
    let of_rank = ReplicaOptions { device: device.clone(), ..ReplicaOptions::default() };
    let replica_options = ReplicaOptions { algorithm: algorithm.clone(), engine, dtype, ..of_rank };
    let build = |vb| options.model.build(vb, data.shape);
    let (model, replica) = Replica::build(&comm, &varmap, replica_options, build)?;

    let log = Log::new(checked, &world, (steps, rate))?;
    let saves = Saves::new(options, made_with);
    let numbers = Numbers { dtype, device };
    let mut run = Run { checked, comm: &comm, numbers, model, replica, loader, copies, saves, log };
    for epoch in run.begin()?..options.epochs {
        run.epoch(epoch)?;
    }
    run.finish(&varmap, begun)
}

/// Training of one rank, while it goes on.
struct Run<'a> {
    checked: &'a Checked,
    comm: &'a Communicator,
    numbers: Numbers,
    model: Box<dyn Parts>,
    replica: Replica,
    loader: DataLoader<Batch>,
    /// Queue that copies batches to the device.
    copies: Queue,
    saves: Saves,
    log: Log<'a>,
}

impl Run<'_> {
    /// Goes on from a checkpoint, if that was asked for; returns the epoch to begin with.
    fn begin(&mut self) -> Result<u64, Failure> {
        let options = &self.checked.options;
        if options.trace.is_some() {
            self.replica.trace()?;
        }
        let mut resumed = Resumed::default();
        if options.resume {
            resumed = self.saves.resume(&mut self.replica, &mut self.loader, options.change)?;
            self.log.changed(&resumed.changed);
        }
        // After resuming: a learning rate that has changed goes before the one that was saved.
        self.replica.set_learning_rate(self.log.learning_rate());
        self.saves.check(&self.replica)?;
        self.log.resumed(self.replica.engine().steps());
        Ok(resumed.epoch)
    }

    /// Trains for an epoch, judges the mean of the replicas, and tells both.
    fn epoch(&mut self, epoch: u64) -> Result<(), Failure> {
        self.log.begin(epoch);
        let blocked_before = self.replica.engine().telemetry().blocked();
        let began = Instant::now();
        let mut losses = self.steps(epoch + 1 == self.checked.options.epochs)?;
        if losses.is_empty() {
            // The last checkpoint was of the end of an epoch.
            return Ok(());
        }
        let blocked = self.replica.engine().telemetry().blocked() - blocked_before;
        let steps = began.elapsed();
        if !self.checked.algorithm.trigram().synchronous {
            // What is under way is the algorithm's traffic, and not the evaluation's.
            self.replica.settle()?;
        }
        let spent = Spent { blocked, steps, bytes: self.log.sent() };
        self.comm.blocking().all_reduce(&mut losses, ReduceOp::Mean)?;
        let held_out = &self.checked.data.held_out;
        let judge = || evaluate(self.comm, &*self.model, held_out, &self.numbers);
        let evaluation = self.replica.evaluate_mean(judge)?;
        self.log.end(self.comm, &losses, evaluation, spent)
    }

    /// Steps through what is left of an epoch, and saves now and then, and after the last epoch; returns the losses of
    /// this rank's batches.
    fn steps(&mut self, is_last: bool) -> Result<Vec<f64>, Failure> {
        let mut losses = Vec::new();
        let mut batches = Uploads::new(self.loader.iter(), &self.copies);
        while let Some(batch) = batches.next() {
            let (images, labels) = batch.map_err(|error| -> Failure { error })?;
            let images = self.replica.tensor(&images.elements, &images.shape)?;
            let images = images.to_dtype(self.numbers.dtype)?;
            let labels = self.numbers.labels(&labels)?;
            let forward = |replica: &Replica| -> Result<Tensor, Failure> {
                let mut wait = |part: &str| replica.wait_for(part).map_err(candle_core::Error::wrap);
                let logits = self.model.forward_parts(&images, true, &mut wait)?;
                Ok(loss::cross_entropy(&logits, &labels)?)
            };
            let loss = self.replica.step_with(forward)?;
            losses.push(loss.to_dtype(DType::F64)?.to_scalar()?);
            self.log.step(&losses, self.replica.engine().metrics());
            if self.saves.is_due(self.replica.engine().steps(), false) {
                self.log.warn(self.saves.save(&mut self.replica, batches.state())?);
            }
        }
        if is_last && !losses.is_empty() && self.saves.is_due(self.replica.engine().steps(), true) {
            self.log.warn(self.saves.save(&mut self.replica, batches.state())?);
        }
        Ok(losses)
    }

    /// Judges the mean of the replicas at the end, and reports; returns what to exit with.
    fn finish(mut self, varmap: &VarMap, begun: SystemTime) -> Result<ExitCode, Failure> {
        let Checked { options, algorithm, data, .. } = self.checked;
        if self.log.nothing_left(self.replica.engine().steps()) {
            return Ok(ExitCode::SUCCESS);
        }
        // Only rank 0 gets one.
        if let Some(file) = &options.trace
            && let Some(trace) = self.replica.collect()?
        {
            trace.save(file)?;
            self.log.traced(&trace, file);
        }
        let replicas_identical = self.replica.is_identical()?;
        self.replica.average()?;
        let test_accuracy = evaluate(self.comm, &*self.model, &data.held_out, &self.numbers)?;
        let bytes_per_step = baseline::bytes_per_step(self.comm, varmap)?;
        let result = Judged { test_accuracy, replicas_identical, bytes_per_step };
        let code = self.log.finish(&self.saves, result, begun);
        if !replicas_identical && algorithm.keeps_replicas_identical() {
            return Err(format!("the replicas differ, which {} must not allow", algorithm.name()).into());
        }
        Ok(code)
    }
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

/// Batch to train on.
struct Batch {
    images: Array<f32>,
    labels: Array<u32>,
}

impl Upload for Batch {
    type Uploaded = (Uploaded, Array<u32>);

    /// Begins to copy the images. Labels are few, and integers, which stay for candle.
    fn upload(self, queue: &Queue) -> hexagram::Result<Self::Uploaded> {
        Ok((self.images.upload(queue)?, self.labels))
    }
}

/// Returns a loader of the images that this rank trains on: an equal share of a new shuffle in each epoch, in memory from
/// which `copies` copies.
fn share(
    train: &Images,
    world: &World,
    (options, copies): (&Options, &Queue),
) -> Result<DataLoader<Batch>, Failure> {
    let sampler = DistributedSampler::new(DistributedOptions {
        len: train.len(),
        replicas: world.size(),
        rank: world.rank(),
        seed: options.seed,
        drop_last: true,
        ..DistributedOptions::default()
    })?;
    let pinned = || -> Arc<dyn Memory> { Arc::new(Pinned::new(copies)) };
    let options = LoaderOptions {
        sampler: Some(Box::new(sampler)),
        batch_size: Some(options.batch),
        seed: options.seed,
        drop_last: true,
        workers: options.workers,
        persistent_workers: options.workers > 0,
        memory: (!copies.is_host()).then(pinned),
        ..LoaderOptions::default()
    };
    Ok(DataLoader::with_collate(train.clone(), options, |samples, pool| {
        let (images, labels) = Collate::collate(samples, pool)?;
        Ok(Batch { images, labels })
    })?)
}

/// Type and place of the model's numbers.
struct Numbers {
    dtype: DType,
    device: Device,
}

impl Numbers {
    /// Returns images as the model takes them.
    fn images(&self, images: &Array<f32>) -> candle_core::Result<Tensor> {
        Tensor::from_slice(images, images.shape().to_vec(), &self.device)?.to_dtype(self.dtype)
    }

    /// Returns labels as the loss takes them.
    fn labels(&self, labels: &Array<u32>) -> candle_core::Result<Tensor> {
        Tensor::from_slice(labels, labels.len(), &self.device)
    }
}

/// Returns the share of the held-out images that are recognized; each rank looks at some of them, each image is looked
/// at once.
fn evaluate(
    comm: &Communicator,
    model: &dyn ModuleT,
    held_out: &Images,
    numbers: &Numbers,
) -> Result<f64, Failure> {
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
        let (images, labels) = batch?;
        let found = correct(model, &numbers.images(&images)?, &numbers.labels(&labels)?)?;
        count[0] += i64::from(found);
    }
    comm.blocking().all_reduce(&mut count, ReduceOp::Sum)?;
    Ok(count[0] as f64 / held_out.len() as f64)
}
