//! hexagram's laboratory: small trainings that run with any distributed SGD algorithm, on one machine and alike in every
//! run, and the suite that compares algorithms by them.
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
//! | file | what is in it |
//! |---|---|
//! | `task.rs` | the trait of what is trained; `task/` has those that ship |
//! | `training.rs` | one training: algorithm, task, ranks, partition, seed |
//! | `outcome.rs` | what a training records: loss, accuracy, consensus, bytes |
//! | `link.rs` | time that a training would take over a network |
//! | `suite.rs` | all algorithms on all tasks; `suite/` has its records, statistics, orderings and page |
//! | `arithmetic.rs`, `random.rs` | products of matrices and random numbers for the tasks |

mod arithmetic;
mod link;
mod outcome;
mod random;
pub mod suite;
pub mod task;
mod training;

pub use link::{Link, Work};
pub use outcome::{Outcome, Point};
pub use task::{Evaluation, Task};
pub use training::{Training, train};
