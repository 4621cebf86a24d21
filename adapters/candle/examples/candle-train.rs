//! Trains a small convolutional net on handwritten digits or MNIST, or ResNet-50 on CIFAR-10, on several ranks: `cargo
//! run --release -p hexagram-candle --example candle-train`.
//!
//! Read [`train`] and [`step`]: they are an ordinary candle program except for the lines about `replica`, and work the
//! same under our own launcher, mpirun and torchrun, over shared memory, TCP or threads. Every fifth digit, or the test
//! part of the other data sets, is held out, and never used for training.

mod common;

use candle_core::{DType, Tensor};
use candle_nn::loss;
use clap::{Args, ValueEnum};
use common::batches::share;
use common::data::{TrainingData, digest};
use common::device::{self, RankDevice};
use common::model::{ModelKind, PartwiseModel, seeded};
use common::trained::TrainedModel;
use hexagram::algorithms::EngineOptions;
use hexagram::sampler::loader::LoaderOptions;
use hexagram::{Communicator, Uploads, World};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_lab::run::{self, CheckedRun, RunError, Subject, TrainingSession};
use std::path::PathBuf;
use std::process::ExitCode;

const ABOUT: &str = "\
Train a small convolutional net on handwritten digits, or ResNet-50 on CIFAR-10, on several ranks, with candle.

Under mpirun, torchrun or `hexagram run` it is one rank; otherwise it starts its ranks itself.";

/// Options of this program, in addition to those of every training.
#[derive(Args, Clone)]
struct Own {
    /// Model: small (for digits), resnet14 or resnet50, which get colour images shifted and mirrored
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = ModelKind::Small)]
    model: ModelKind,
    /// Type of the parameters
    #[arg(long, value_enum, default_value_t = FloatType::F32)]
    dtype: FloatType,
    /// A folder with MNIST (IDX files) or CIFAR-10 (binary version), or a file of digits: 64 pixels 0..16 and a label
    /// per line, .csv or .csv.gz
    #[arg(long)]
    data: Option<PathBuf>,
    /// Threads that load images ahead of each rank; 0 loads between steps, which is enough for the digits
    #[arg(long, default_value_t = 0)]
    workers: usize,
}

/// Type of the parameters, gradients and arithmetic.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum FloatType {
    F32,
    F64,
}

fn main() -> ExitCode {
    run::main("candle-train", ABOUT, |options, own: Own| {
        own.model.check_batch(options.batch)?;
        device::check(options.device)?;
        let data = own.data.as_ref().map_or_else(TrainingData::embedded, |path| TrainingData::read(path))?;
        let subject = Subject {
            program: "candle-train",
            model: own.model.to_string(),
            rates: "convolutional",
            dtype: if own.dtype == FloatType::F64 { "f64" } else { "f32" },
            samples: data.train.len(),
            digest: digest(&data.train)?,
            costs: None,
        };
        let run = CheckedRun::check(options, subject)?;
        device::share_cores()?;
        run.start(|world| train(&run, &own, &data, world))
    })
}

/// Runs one rank of the training, from the initial parameters to the report; returns the exit code.
fn train(run: &CheckedRun, own: &Own, data: &TrainingData, world: &World) -> Result<ExitCode, RunError> {
    let comm = Communicator::open(world, 0)?;
    let RankDevice { device, queue } = RankDevice::open(run.options.device, world.local_rank())?;
    let copies = queue.another()?;
    let images = own.model.shown(&data.train, data.shape);
    let mut loader = share(images, LoaderOptions { workers: own.workers, ..run.share(world)? }, &copies)?;
    let dtype = if own.dtype == FloatType::F64 { DType::F64 } else { DType::F32 };
    let build = |vb| own.model.build(vb, data.shape);
    let varmap = seeded(run.options.seed, (dtype, &device), build)?;

    // Only this, and the calls of `replica` in `step`, differ from a program for one process.
    let engine = EngineOptions { queue, ..run.engine() };
    let of_rank = ReplicaOptions { device: device.clone(), ..ReplicaOptions::default() };
    let options = ReplicaOptions { algorithm: run.algorithm.clone(), engine, dtype, ..of_rank };
    let (model, replica) = Replica::build(&comm, &varmap, options, build)?;

    let held_out = data.held_out.clone();
    let mut trained = TrainedModel { replica, model, held_out, dtype, device };
    let mut session = TrainingSession::begin(run, &comm, &mut trained, &mut loader)?;
    for epoch in session.epochs() {
        session.begin_epoch(epoch, &trained);
        let mut batches = Uploads::new(loader.iter(), &copies);
        while let Some(batch) = trained.replica.loading(|| batches.next()) {
            let (images, labels) = batch.map_err(|error| -> RunError { error })?;
            let images = trained.replica.tensor(&images.elements, &images.shape)?.to_dtype(dtype)?;
            let labels = Tensor::from_slice(&labels, labels.len(), &trained.device)?;
            let loss = step(&mut trained.replica, &*trained.model, (&images, &labels))?;
            session.step(&mut trained, loss, batches.state())?;
        }
        drop(batches);
        session.end_epoch(&mut trained)?;
    }
    session.finish(&mut trained)
}

/// Makes a step on one batch, together with all ranks; returns the loss of this rank.
fn step(
    replica: &mut Replica,
    model: &dyn PartwiseModel,
    (images, labels): (&Tensor, &Tensor),
) -> Result<f64, RunError> {
    let forward = |replica: &Replica| -> Result<Tensor, RunError> {
        let mut wait = |part: &str| replica.wait_for(part).map_err(candle_core::Error::wrap);
        let logits = model.forward_parts(images, true, &mut wait)?;
        Ok(loss::cross_entropy(&logits, labels)?)
    };
    let loss = replica.step_with(forward)?;
    Ok(loss.to_dtype(DType::F64)?.to_scalar()?)
}
