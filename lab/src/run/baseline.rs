//! Bytes that synchronous SGD would send, to compare an algorithm's with: measured, not computed, since how many bytes
//! an all-reduce sends depends on size and number of ranks.

use candle_nn::VarMap;
use hexagram::algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Order, Parameter};
use hexagram::{Buffer, Communicator, DType, Error, ReduceOp, Result};
use std::sync::Arc;

/// Returns the bytes that all ranks together send in one step of `gradient-allreduce` on this model, without headers.
/// A collective call, while nothing else communicates.
///
/// # Errors
/// Errors of the communication.
pub fn bytes_per_step(comm: &Communicator, varmap: &VarMap) -> Result<f64> {
    const STEPS: usize = 4;
    let data = varmap.data().lock().map_err(|_| Error::usage("the VarMap is poisoned", "see the panic"))?;
    // Statistics have no gradient.
    let learned = data.iter().filter(|(name, _)| !name.contains("running_"));
    let parameter = |(_, var): (&String, &candle_core::Var)| Parameter {
        name: String::new(),
        dtype: if var.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 },
        shape: var.dims().to_vec(),
    };
    // The order of a VarMap's tensors differs between processes.
    let mut parameters: Vec<Parameter> = learned.map(parameter).collect();
    drop(data);
    parameters.sort_by(|one, other| one.shape.cmp(&other.shape));
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
