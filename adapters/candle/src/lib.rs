//! Distributed data-parallel training for [candle](https://docs.rs/candle-core): change two lines of an ordinary program.
//!
//! ```diff
//! - let model = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
//! + let (model, mut replica) = Replica::build(&comm, &varmap, ReplicaOptions::default(), Net::new)?;
//!   let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
//!   for (x, y) in batches {
//!       let loss = loss::cross_entropy(&model.forward(&x)?, &y)?;
//! -     optimizer.backward_step(&loss)?;
//! +     replica.backward_step(&mut optimizer, &loss)?;
//!   }
//! ```
//!
//! Gradients are communicated while candle's backward pass goes on. candle has no hooks, so each parameter that the model
//! sees is an identity operation on its `Var`, whose backward is called as soon as the gradient is complete (`tap.rs`);
//! that costs one copy of the parameters per step. CPU tensors only, for now.

mod error;
mod parameters;
mod replica;
mod sync_batch_norm;
mod tap;
mod values;

pub use error::{Error, Result};
/// The layers below: algorithms, engine options, communicators.
pub use hexagram_algorithms as algorithms;
pub use replica::{Replica, ReplicaOptions, Synchronized};
pub use sync_batch_norm::{SyncBatchNorm, sync_batch_norm};
