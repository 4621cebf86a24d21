//! Trains ResNet-50 on CIFAR-10 with two ranks, like the basic example of PyTorch's DistributedDataParallel: `cargo run
//! --release -p hexagram-candle --example ddp -- FOLDER`, with the folder of the binary version of CIFAR-10 (not
//! downloaded); without a folder, on the built-in handwritten digits. Under `hexagram run`, mpirun or torchrun it is
//! one rank.
//!
//! `World::join` corresponds to `dist.init_process_group`, `Replica` to `DDP`, and `Pinned`, in `share`, to
//! `pin_memory`.

mod common;

use candle_core::Tensor;
use candle_nn::{ModuleT, Optimizer, SGD, VarMap, loss};
use clap::Parser;
use common::batches::share;
use common::data::{TrainingData, enlarged};
use common::device::RankDevice;
use common::resnet::{ResNet, ResNetOptions};
use hexagram::launch::{Job, as_rank};
use hexagram::physical::device::DeviceChoice;
use hexagram::sampler::dataset::Dataset;
use hexagram::{
    Communicator, DistributedOptions, DistributedSampler, JoinOptions, LoaderOptions, Placement, Sampling,
    Uploads, World,
};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_lab::run::{RunError, failure};
use std::path::PathBuf;
use std::process::ExitCode;

/// Train ResNet-50 with two ranks, like the basic example of PyTorch's DistributedDataParallel.
#[derive(Parser)]
struct DdpOptions {
    /// Folder with CIFAR-10 (binary version) or MNIST; without it, handwritten digits
    data: Option<PathBuf>,
    /// Initial weights, in safetensors, with the names of torchvision
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Images per rank and step
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Threads that load images ahead of each rank
    #[arg(long, default_value_t = 4)]
    workers: usize,
    /// Pixels of a side, to which images are enlarged
    #[arg(long, default_value_t = 224, value_parser = clap::value_parser!(u16).range(32..))]
    side: u16,
    /// Steps after which to end, instead of a whole epoch
    #[arg(long)]
    steps: Option<usize>,
    /// File for a trace of all ranks, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn demo_basic(world: &World, options: &DdpOptions) -> Result<(), RunError> {
    println!("Running basic DDP example on rank {}.", world.rank());
    let comm = Communicator::open(world, 0)?;
    let RankDevice { device, queue } = RankDevice::open(DeviceChoice::Auto, world.local_rank())?;

    let data = options.data.as_deref().map_or_else(TrainingData::embedded, TrainingData::read)?;
    let dataset = enlarged(&data.train, options.side.into());
    let sampler = DistributedSampler::new(DistributedOptions { len: dataset.len(), ..comm.sampling() })?;
    let of_loader = LoaderOptions {
        batch_size: Some(options.batch),
        sampler: Some(Box::new(sampler)),
        workers: options.workers,
        ..LoaderOptions::default()
    };
    let copies = queue.another()?;
    let mut train_loader = share(dataset, of_loader, &copies)?;

    // All ranks get the parameters of rank 0.
    let mut varmap = VarMap::new();
    let resnet50 = |vb| ResNet::new(vb, ResNetOptions::resnet50());
    let of_replica = ReplicaOptions { device: device.clone(), ..ReplicaOptions::default() };
    let (model, mut replica) = Replica::build(&comm, &varmap, of_replica, resnet50)?;
    if let Some(weights) = &options.weights {
        varmap.load(weights)?;
        replica.refresh()?;
    }
    let mut optimizer = SGD::new(varmap.all_vars(), 0.001)?;
    if options.trace.is_some() {
        replica.trace()?;
    }

    let mut batches = Uploads::new(train_loader.iter(), &copies);
    for _ in 0..options.steps.unwrap_or(usize::MAX) {
        let Some(batch) = replica.loading(|| batches.next()) else { break };
        let (inputs, labels) = batch.map_err(|error| -> RunError { error })?;
        let inputs = replica.tensor(&inputs.elements, &inputs.shape)?;
        let labels = Tensor::from_slice(&labels, labels.len(), &device)?;
        let outputs = model.forward_t(&inputs, true)?;
        replica.backward_step(&mut optimizer, &loss::cross_entropy(&outputs, &labels)?)?;
    }
    if let Some(file) = &options.trace
        && let Some(trace) = replica.collect()?
    {
        trace.save(file)?;
    }
    println!("Rank {} has made {} steps.", world.rank(), replica.engine().steps());
    Ok(())
}

fn run_demo(ranks: usize) -> Result<ExitCode, RunError> {
    let options = DdpOptions::parse();
    if Placement::from_env()?.is_none() {
        let outcome = Job::of_this_program(ranks)?.run()?;
        return Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)));
    }
    as_rank(World::join(&JoinOptions::default())?, |world| demo_basic(&world, &options))?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    run_demo(2).unwrap_or_else(|error| failure("ddp", &*error))
}
