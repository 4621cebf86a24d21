//! The engine's tests, by topic, and what they share: small models, and engines for them.

mod failures;
mod hooks;
mod passes;
mod plan;
mod shared;

use super::plan::Plan;
use super::*;
use crate::gradient_all_reduce::GradientAllReduce;
use crate::plugin::Bucket;
use crate::plugin::Context;
use crate::plugin::{Algorithm, Buckets, Trigram};
use hexagram_logical::codec::Half;
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::testing::spawn;
use hexagram_logical::{HEADER_BYTES, NOTICE_BYTES, ReduceOp, TransportKind};
use std::sync::atomic::{AtomicUsize, Ordering};
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
        ..EngineOptions::default()
    }
}

fn engine(comm: &Communicator, parameters: Vec<Parameter>, options: EngineOptions) -> Result<DataParallel> {
    DataParallel::new(comm, parameters, Arc::new(GradientAllReduce), options)
}

fn gradient(engine: &DataParallel, parameter: usize) -> Vec<f32> {
    floats(engine.gradient(parameter).unwrap().bytes())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
