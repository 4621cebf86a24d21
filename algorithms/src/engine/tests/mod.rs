//! The tests of the engine, by topic, and their helpers: small models, and engines for them.

mod agree;
mod bucket_memory;
mod clip;
mod communication_hook;
mod evaluations;
mod failures;
mod hierarchy;
mod hooks;
mod join;
mod memory;
mod messages;
mod optimizer;
mod order;
mod overlap;
mod passes;
mod plan;
mod precision;
mod probe;
#[cfg(feature = "cuda")]
mod programs;
mod shared;
mod slots;
mod switch;
mod uncalled;
mod waiting;

use super::plan::ModelPlan;
use super::*;
use crate::gradient_all_reduce::GradientAllReduce;
use crate::local_sgd::LocalSgd;
use crate::optimizer::Sgd;
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Trigram};
use crate::testing::fitting;
use hexagram_logical::codec::Half;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::{buffer, queue, spawn, transports, zeroed};
use hexagram_logical::{DType, HEADER_BYTES, NOTICE_BYTES, TransportKind};
use probe::{Act, Probe};
use std::sync::atomic::Ordering;
use std::time::Instant;

fn parameter(name: &str, dtype: DType, len: usize) -> Parameter {
    Parameter { name: name.to_owned(), dtype, shape: vec![len] }
}

/// `count` parameters of `len` f32 each.
fn parameters(count: usize, len: usize) -> Vec<Parameter> {
    (0..count).map(|index| parameter(&format!("p{index}"), DType::F32, len)).collect()
}

fn options(first: usize, others: usize) -> EngineOptions {
    EngineOptions {
        first_bucket_bytes: first,
        bucket_bytes: others,
        order: Order::Listed,
        queue: queue(),
        ..EngineOptions::default()
    }
}

fn engine(comm: &Communicator, parameters: Vec<Parameter>, options: EngineOptions) -> Result<DataParallel> {
    let options = EngineOptions { queue: queue(), ..options };
    DataParallel::new(comm, parameters, Arc::new(GradientAllReduce), options)
}

/// The same, with an optimizer and a learning rate, and every parameter set to `at`.
fn trained_by(
    comm: &Communicator,
    parameters: Vec<Parameter>,
    algorithm: impl Into<AnyAlgorithm>,
    options: EngineOptions,
    (rate, at): (f64, f32),
) -> Result<DataParallel> {
    let algorithm = algorithm.into();
    let plain = || fitting(&algorithm, Arc::new(Sgd::default()));
    let optimizer = options.optimizer.clone().unwrap_or_else(plain);
    let options = EngineOptions { optimizer: Some(optimizer), queue: queue(), ..options };
    let lengths: Vec<usize> = parameters.iter().map(Parameter::len).collect();
    let mut engine = DataParallel::new(comm, parameters, algorithm, options)?;
    engine.set_learning_rate(rate);
    for (index, len) in lengths.into_iter().enumerate() {
        engine.set_parameter(index, &buffer(&vec![at; len]))?;
    }
    Ok(engine)
}

/// A backward pass with these gradients, from the last parameter to the first.
fn pass(engine: &mut DataParallel, mode: Mode, gradients: &[Vec<f32>]) -> Result<()> {
    let hooks = engine.hooks();
    engine.begin(mode)?;
    for (index, gradient) in gradients.iter().enumerate().rev() {
        hooks.ready_slice(index, gradient)?;
    }
    engine.finish()
}

/// The values of a parameter.
fn value(engine: &DataParallel, parameter: usize) -> Vec<f32> {
    floats(&engine.parameter(parameter).unwrap().bytes_on_host().unwrap())
}

fn gradient(engine: &DataParallel, parameter: usize) -> Vec<f32> {
    floats(&engine.gradient(parameter).unwrap().bytes_on_host().unwrap())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
