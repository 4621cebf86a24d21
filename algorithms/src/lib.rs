//! hexagram's algorithms: distributed SGD variants, each one file that reads like its update rule.
//!
//! An algorithm is a plugin ([`Algorithm`]): it says what happens to a bucket of gradients once it is complete. The
//! engine ([`DataParallel`]) gives every plugin the rest: buckets, overlap with the backward pass, the broadcast of the
//! initial state, gradient accumulation, and errors that name the parameter or the rank.
//!
//! Reading order: [`algorithm`] (the trait), [`gradient_all_reduce`] (the simplest plugin), [`engine`].

pub mod algorithm;
pub mod engine;
pub mod gradient_all_reduce;
pub mod registry;

pub use algorithm::{Algorithm, AnyAlgorithm, Trigram};
pub use engine::{DataParallel, EngineOptions, Hooks, Mode, Parameter, Unused};
pub use gradient_all_reduce::GradientAllReduce;
/// The layer below, for algorithms and adapters.
pub use hexagram_logical as logical;
