//! Bytes of synchronous SGD, to compare an algorithm's with. They are measured, not computed, since the bytes of an
//! all-reduce depend on its size and the number of ranks.

use hexagram::algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Order, Parameter};
use hexagram::{Buffer, ReduceOp, Result};
use std::sync::Arc;

/// Returns the bytes that all ranks together send in one step of `gradient-allreduce` with the buckets of this
/// engine, without headers. A collective call; no other communication may be in progress.
///
/// # Errors
/// Errors of the communication.
pub(super) fn bytes_per_step(of: &DataParallel) -> Result<f64> {
    const STEPS: usize = 4;
    let comm = of.communicator();
    let bucket = |(dtype, len)| Parameter { name: String::new(), dtype, shape: vec![len] };
    let parameters: Vec<Parameter> = of.telemetry().buckets().into_iter().map(bucket).collect();
    let zeros: Result<Vec<Buffer>> = parameters.iter().map(|p| Buffer::zeroed(p.dtype, p.len())).collect();
    let options = EngineOptions { order: Order::Listed, ..EngineOptions::default() };
    let mut engine = DataParallel::new(comm, parameters, Arc::new(GradientAllReduce), options)?;
    engine.initial().prepare()?;
    let hooks = engine.hooks();
    let zeros = zeros?;
    let before = comm.world().traffic().payload_sent();
    for _ in 0..STEPS {
        engine.begin(Mode::Synchronize)?;
        zeros.iter().enumerate().try_for_each(|(index, zeros)| hooks.ready(index, zeros))?;
        engine.finish()?;
    }
    let mut sent = [(comm.world().traffic().payload_sent() - before) as f64 / STEPS as f64];
    comm.blocking().all_reduce(&mut sent, ReduceOp::Sum)?;
    Ok(sent[0])
}
