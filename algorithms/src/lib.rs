//! hexagram's algorithms: distributed SGD variants, each one file that reads like its update rule.
//!
//! An algorithm is a plugin ([`Algorithm`]): it says what happens to a bucket of gradients once it is complete. The
//! engine ([`DataParallel`]) gives every plugin the rest: buckets, overlap with the backward pass, the broadcast of the
//! initial state, gradient accumulation, and errors that name the parameter or the rank.
//!
//! Reading order: [`algorithm`] (the trait), [`gradient_all_reduce`] (the simplest plugin), [`engine`].

pub mod algorithm;
mod bucket;
mod context;
pub mod engine;
mod fields;
pub mod gradient_all_reduce;
mod instance;
pub mod local_sgd;
pub mod optimizer;
pub mod registry;
pub mod testing;

pub use algorithm::{Algorithm, Buckets, Needs, Trigram};
pub use bucket::{Bucket, Tensor};
pub use context::Context;
pub use engine::{DataParallel, EngineOptions, Hooks, Mode, Order, Parameter, Unused};
pub use fields::Fields;
pub use gradient_all_reduce::GradientAllReduce;
/// The layer below, for algorithms and adapters.
pub use hexagram_logical as logical;
pub use instance::{AnyAlgorithm, HookFuture, Instance};
pub use optimizer::{Adam, Optimizer, Sgd};
