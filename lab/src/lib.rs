//! hexagram's laboratory. It has small trainings that run with any distributed SGD algorithm, on real ranks or
//! reproducibly on one machine, and the suite that compares algorithms by these trainings. Its programs train,
//! compare, suite, step, simulate and advise accept the algorithms of any
//! [`Registry`](hexagram::algorithms::Registry), including your own: [`main`].
//!
//! ```
//! use hexagram::sampler::Partition;
//! use hexagram_lab::task::Quadratics;
//! use hexagram_lab::{Training, train};
//! use std::sync::Arc;
//!
//! let task = Arc::new(Quadratics::new(0)?);
//! let setup = Training { ranks: 4, steps: 200, partition: Partition::Equal, ..Training::of(task) };
//! let outcome = train(&setup)?;
//! assert!(outcome.last().evaluation.loss < 1e-3);
//! # Ok::<(), hexagram::Error>(())
//! ```
//!
//! | file | content |
//! |---|---|
//! | `task/` | the trait of a training task, and the tasks included |
//! | `training/` | one training: algorithm, task, ranks, partition, seed |
//! | `outcome.rs` | the record of a training: loss, accuracy, consensus, bytes |
//! | `virtual_ranks.rs` | ranks as threads that take turns in virtual time |
//! | `program/` | the programs, with their options and shared code |
//! | `link.rs` | time that a training would take over a network |
//! | `suite/` | all algorithms on all tasks: step sizes, records, statistics, orderings, page |
//! | `run/` | training programs with progress, checkpoints and traces |
//! | `picture/` | pictures of figures, as SVG |
//! | `arithmetic.rs`, `random.rs` | products of matrices and random numbers for the tasks |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod arithmetic;
mod learning_rates;
mod link;
mod outcome;
pub mod picture;
pub mod program;
mod random;
pub mod run;
#[cfg(feature = "programs")]
pub mod suite;
pub mod task;
mod training;
mod virtual_ranks;

pub use learning_rates::{Tuned, tuned};
pub use link::{NetworkLink, RankWork};
pub use outcome::{CurvePoint, StepRecord, TrainingOutcome};
#[cfg(feature = "programs")]
pub use program::main;
pub use task::{ModelEvaluation, Task};
#[cfg(feature = "programs")]
pub use training::{OnCluster, SimulatedTraining, train_on_cluster};
pub use training::{Training, train, train_on};
