//! The algorithms of hexagram: distributed SGD variants, each in one file that reads like its update rule.
//!
//! An algorithm is a plugin ([`Algorithm`]): it defines the data to communicate, in which buckets, with which
//! primitive, and when. The engine ([`DataParallel`]) provides the rest to every plugin: flat buckets, overlap with the
//! backward pass, the broadcast of the initial state, gradient accumulation, hierarchical communication, and errors
//! that name the parameter or the rank.
//!
//! ```
//! use hexagram::logical::testing::spawn;
//! use hexagram::logical::{Buffer, DType, Result, TransportKind};
//! use hexagram::algorithms::{DataParallel, EngineOptions, GradientAllReduce, Mode, Parameter, Sgd};
//! use std::sync::Arc;
//!
//! fn main() -> Result<()> {
//!     // Two ranks, here as threads, minimize the mean of (x − 1)² and (x − 2)²: each has one of the terms.
//!     let found = spawn(TransportKind::Thread, 2, |comm| {
//!         let x = Parameter { name: "x".to_owned(), dtype: DType::F32, shape: vec![1] };
//!         let options = EngineOptions { optimizer: Some(Arc::new(Sgd::default())), ..EngineOptions::default() };
//!         let mut engine = DataParallel::new(&comm, vec![x], GradientAllReduce, options)?;
//!         engine.set_learning_rate(0.25);
//!         engine.set_parameter(0, &Buffer::from_slice(&[0.0f32])?)?;
//!         let hooks = engine.hooks();
//!         for _ in 0..20 {
//!             let x = engine.values::<f32>(0)?[0];
//!             engine.begin(Mode::Synchronize)?;
//!             hooks.ready_slice(0, &[2.0 * (x - 1.0 - comm.rank() as f32)])?;
//!             engine.finish()?;
//!             engine.step()?;
//!         }
//!         engine.values::<f32>(0)
//!     })?;
//!     assert!(found.iter().all(|x| (x[0] - 1.5).abs() < 1e-3));
//!     Ok(())
//! }
//! ```
//!
//! Reading order: [`plugin`] (the trait), [`gradient_all_reduce`] and [`local_sgd`] (the simplest plugins, one for
//! gradients and one for parameters), [`engine`]. Test your own plugin with [`testing`].
//!
//! # Features
//! None is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `mpi` | the `mpi` transport: ranks that are started by mpirun and connected by MPI | mpicc and libclang |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod ad_psgd;
pub mod async_model_average;
pub mod bytegrad;
pub mod checkpoint;
pub mod choco_sgd;
pub mod compressed_allreduce;
pub mod d_psgd;
pub mod decentralized;
pub mod deepsqueeze;
pub mod demo;
pub mod dgc;
pub mod diloco;
pub mod dion;
pub mod easgd;
pub mod ef21;
mod elementwise;
pub mod engine;
pub mod exact_diffusion;
pub mod extra;
mod float_ext;
pub mod gossip;
pub mod gossip_pga;
pub mod gradient_all_reduce;
pub mod gradient_tracking;
mod host_copy;
pub mod local_sgd;
pub mod loco;
pub mod low_precision_decentralized;
pub mod noloco;
pub mod optimizer;
pub mod plugin;
pub mod qadam;
pub mod qg_dsgdm;
mod record;
pub mod registry;
pub mod relaysgd;
pub mod sgp;
pub mod signsgd_vote;
pub mod slowmo;
pub mod sparse_loco;
pub mod ssp;
pub mod streaming_diloco;
pub mod testing;
pub mod trace;
pub mod zero_one_adam;

pub use checkpoint::{BackgroundSaves, Checkpoints, Record, Snapshots};
pub use engine::{
    Autotune, Buffers, DataParallel, EngineOptions, Hooks, LossScale, Mode, Order, Overlap, Parameter, Unused,
};
pub use gradient_all_reduce::GradientAllReduce;
/// The layer below, for algorithms and adapters.
pub use hexagram_logical as logical;
pub use hexagram_logical::options_text::Options;
pub use optimizer::{
    Adam, AdamW, Frozen, Lamb, Lars, LearningRate, Lion, Members, Moments, Muon, Optimizer, ParameterGroup,
    RateSchedule, Sgd,
};
pub use plugin::{
    About, Algorithm, AnyAlgorithm, Averager, Averaging, Bucket, Buckets, Clipping, Combine, Context, Fields,
    ImplementedHooks, MeanCodec, Needs, Optimizers, Slots, StepForm, Tensor, Trigram, check_f32,
    check_option,
};
pub use registry::Registry;
pub use trace::Trace;
