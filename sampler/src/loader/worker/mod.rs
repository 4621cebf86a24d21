//! Worker threads, which fetch samples and make batches.
//!
//! | file | content |
//! |---|---|
//! | `workers` | the threads, their queues, and the pinning thread |
//! | `fetch` | the work of a task: load, retry, skip, collate |
//! | `context` | the context of a worker, and caught panics |
//! | `generator` | random numbers for one sample |

mod context;
mod fetch;
mod generator;
mod workers;

pub(super) use context::WorkerContext;
pub use context::WorkerInfo;
pub(super) use fetch::{
    Assemble, ByIndex, FetchOutcome, FetchTask, FetchWork, Fetcher, Fetchers, InTurn, Made, Policy,
};
pub use generator::SampleGenerator;
pub(super) use workers::{LATE, Recipe, Workers, pin};
