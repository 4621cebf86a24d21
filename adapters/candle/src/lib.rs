//! Distributed data-parallel training for [candle](https://docs.rs/candle-core): change two lines of an ordinary
//! program.
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
//! A step of two ranks, as threads of one process:
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{Optimizer, SGD, VarMap, linear};
//! use hexagram_candle::algorithms::logical::testing::spawn;
//! use hexagram_candle::algorithms::logical::{Error, TransportKind};
//! use hexagram_candle::{Replica, ReplicaOptions, Result};
//!
//! let identical = spawn(TransportKind::Thread, 2, |comm| {
//!     let train = || -> Result<bool> {
//!         let varmap = VarMap::new();
//!         let build = |vb| linear(3, 1, vb);
//!         let (model, mut replica) = Replica::build(&comm, &varmap, ReplicaOptions::default(), build)?;
//!         let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
//!         // Each rank has its own samples.
//!         let x = Tensor::full(comm.rank() as f32, (4, 3), &Device::Cpu)?;
//!         let loss = model.forward(&x)?.sqr()?.mean_all()?;
//!         replica.backward_step(&mut optimizer, &loss)?;
//!         replica.is_identical()
//!     };
//!     train().map_err(|error| Error::usage(error.to_string(), "see the example"))
//! })?;
//! assert_eq!(identical, [true, true]);
//! # Ok::<(), hexagram_candle::algorithms::logical::Error>(())
//! ```
//!
//! The optimizer of the engine is faster, and works with every algorithm: set [`EngineOptions::optimizer`] in
//! [`ReplicaOptions::engine`], call [`Replica::set_learning_rate`], and then, for each batch, [`Replica::forward`] and
//! [`Replica::step`] instead of `backward_step`. [`sync_batch_norm`] normalizes over the samples of all ranks.
//!
//! [`EngineOptions::optimizer`]: algorithms::EngineOptions::optimizer
//!
//! Gradients are communicated during the backward pass of candle. candle has no hooks, so each parameter in the model
//! is an identity operation on its `Var`, whose backward is called as soon as the gradient is complete
//! (`model/tap.rs`); this needs memory for a copy of the parameters.
//!
//! With [`Overlap::Forward`] in the engine options, a step leaves its parameters in progress, and the forward pass
//! calls [`Replica::wait_for`] before each module.
//!
//! [`Overlap::Forward`]: algorithms::Overlap::Forward
//!
//! # Features
//! | feature | adds | needs |
//! |---|---|---|
//! | `cuda` | models on NVIDIA GPUs: [`ReplicaOptions::device`] | the CUDA toolkit, to build the candle kernels |
//!
//! On a GPU, hooks return before a gradient is computed. The copy of the gradient to a bucket, and so the communication
//! of the bucket, waits on the device for the work that candle has enqueued before; candle waits there for new
//! parameters. The program itself waits only for the end of the communication of each step. Use the replica on the
//! thread that built it, as the candle stream is by default that of a thread. A parameter changed without its replica
//! is found one pass later than on the host. [`sync_batch_norm`] is for models in host memory. The feature has run on
//! one H100, and not yet on two GPUs.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod error;
mod model;
mod options;
mod replica;
mod sync_batch_norm;

pub use error::{Error, Result};
/// The layers below: algorithms, engine options, communicators.
pub use hexagram_algorithms as algorithms;
pub use options::ReplicaOptions;
pub use replica::{Replica, Synchronized};
pub use sync_batch_norm::{SyncBatchNorm, sync_batch_norm};
