//! Trains ResNet-50 on CIFAR-10 by two ranks, in the steps of the basic example of PyTorch's DistributedDataParallel:
//! `cargo run --release -p hexagram-candle --example ddp -- FOLDER`, with the folder of CIFAR-10's binary version, which is
//! not fetched; without one, on handwritten digits that are compiled in. Under `hexagram run`, mpirun or torchrun it is one
//! rank.
//!
//! What `dist.init_process_group` does is `World::join`, and `DDP` is `Replica`. Unlike there, the model is not
//! pretrained, as its first layers are those for small images. Images are neither enlarged nor normalized; both is a
//! `map` of the dataset. Batches have 16 of them, as normalization over a batch needs more than one value. They are not in
//! pinned memory; `candle-train.rs` has that.

mod common;

use candle_core::Tensor;
use candle_nn::{ModuleT, Optimizer, SGD, VarMap, loss};
use common::data::Data;
use common::device::Place;
use common::resnet::ResNet;
use hexagram::launch::{Job, as_rank};
use hexagram::physical::device::DeviceChoice;
use hexagram::sampler::dataset::Dataset;
use hexagram::{
    Communicator, DataLoader, DistributedOptions, DistributedSampler, JoinOptions, LoaderOptions, Placement,
    Sampling, World,
};
use hexagram_candle::{Replica, ReplicaOptions};
use hexagram_lab::run::{Failure, failure};
use std::path::Path;
use std::process::ExitCode;

fn demo_basic(world: &World, folder: Option<&str>) -> Result<(), Failure> {
    println!("Running basic DDP example on rank {}.", world.rank());
    let comm = Communicator::open(world, 0)?;
    let Place { device, .. } = Place::open(DeviceChoice::Auto, world.local_rank())?;

    let dataset = folder.map_or_else(Data::embedded, |folder| Data::read(Path::new(folder)))?;
    let options = DistributedOptions { len: dataset.train.len(), ..comm.sampling() };
    let sampler = Some(Box::new(DistributedSampler::new(options)?) as _);
    let options = LoaderOptions { batch_size: Some(16), sampler, workers: 4, ..LoaderOptions::default() };
    let mut train_loader = DataLoader::new(dataset.train, options)?;

    // Rank 0's parameters are everybody's.
    let varmap = VarMap::new();
    let resnet50 = |vb| ResNet::new(vb, ResNet::OF_50, dataset.shape[0]);
    let options = ReplicaOptions { device: device.clone(), ..ReplicaOptions::default() };
    let (model, mut replica) = Replica::build(&comm, &varmap, options, resnet50)?;
    let mut optimizer = SGD::new(varmap.all_vars(), 0.001)?;

    for data in train_loader.iter() {
        let (inputs, labels) = data?;
        let inputs = Tensor::from_slice(&inputs, inputs.shape().to_vec(), &device)?;
        let labels = Tensor::from_slice(&labels, labels.len(), &device)?;
        replica.forward()?;
        let outputs = model.forward_t(&inputs, true)?;
        replica.backward_step(&mut optimizer, &loss::cross_entropy(&outputs, &labels)?)?;
    }
    println!("Rank {} has made {} steps.", world.rank(), replica.engine().steps());
    Ok(())
}

fn run_demo(ranks: usize) -> Result<ExitCode, Failure> {
    let folder = std::env::args().nth(1);
    if Placement::from_env()?.is_none() {
        let outcome = Job::of_this_program(ranks)?.run()?;
        return Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)));
    }
    as_rank(World::join(&JoinOptions::default())?, |world| demo_basic(&world, folder.as_deref()))?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    run_demo(2).unwrap_or_else(|error| failure("ddp", &*error))
}
