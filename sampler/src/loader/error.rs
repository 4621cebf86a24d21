//! Errors of the loader. Every error names the worker, its task, the cause and a remedy.

use crate::error::SamplerError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Error of a loader.
///
/// An error ends the epoch. [`DataLoader::state`](super::DataLoader::state) is still the position before the failed
/// batch, so that a run can continue there.
#[derive(Clone)]
#[non_exhaustive]
pub enum LoaderError {
    /// Options that contradict each other or the dataset.
    Options {
        /// The contradiction.
        what: String,
        /// Remedy.
        remedy: &'static str,
    },

    /// The sampler failed, for instance because the dataset is empty.
    Sampler(SamplerError),

    /// A state of a loader with different options.
    State {
        /// Options of the state that differ.
        theirs: String,
        /// The same options of this loader.
        ours: String,
    },

    /// A state that contradicts itself, for instance from a damaged checkpoint.
    BadState {
        /// The contradiction.
        what: String,
    },

    /// A sample could not be loaded.
    Sample {
        /// The sample.
        index: usize,
        /// Thread that loaded it.
        worker: Actor,
        /// Epoch of the sample.
        epoch: u64,
        /// Number of attempts.
        attempts: u32,
        /// The error of the dataset, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// An iterable dataset failed.
    Item {
        /// Index of the item in the pass of this worker in this epoch, from 0.
        item: usize,
        /// Thread that loaded it.
        worker: Actor,
        /// Epoch of the item.
        epoch: u64,
        /// The error of the dataset, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// Samples could not be collated.
    Collate {
        /// Thread that collated them.
        worker: Actor,
        /// The samples, as text: the invalid one and the first, if known.
        samples: String,
        /// Epoch of the samples.
        epoch: u64,
        /// The error of the collate function, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The memory for a batch could not be allocated.
    Memory {
        /// Thread that allocated it.
        worker: Actor,
        /// Epoch of the batch.
        epoch: u64,
        /// The error of the memory.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The initialization of a worker failed.
    Init {
        /// Worker that failed.
        worker: Actor,
        /// The error of the function, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The pinning stage failed.
    Pin {
        /// Epoch of the batch.
        epoch: u64,
        /// The error of the stage, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// No batch arrived in time.
    Timeout {
        /// Time for which the loader waited.
        after: Duration,
        /// Current work of each worker, as text.
        doing: String,
    },

    /// The system refused a new thread.
    Spawn {
        /// Thread that could not be started.
        who: Actor,
        /// Error of the system.
        cause: Arc<std::io::Error>,
    },

    /// All workers ended without an error.
    Gone,
}

impl fmt::Display for LoaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoaderError::Options { what, remedy } => write!(f, "{what}; {remedy}"),
            LoaderError::Sampler(cause) => cause.fmt(f),
            LoaderError::State { theirs, ours } => write!(
                f,
                "the state was taken with {theirs}, but this loader has {ours}; \
                 create the loader and its sampler with the same options and seeds"
            ),
            LoaderError::BadState { what } => {
                write!(f, "the state of the loader is damaged: {what}; resume from an older checkpoint")
            }
            LoaderError::Sample { index, worker, epoch, attempts, cause } => write!(
                f,
                "{worker} cannot load sample {index} in epoch {epoch}{}: {cause}; \
                 correct the sample, or let the loader skip it (`on_failure` of its options)",
                tries(*attempts)
            ),
            LoaderError::Item { item, worker, epoch, cause } => write!(
                f,
                "{worker} cannot load its item {item} in epoch {epoch}: {cause}; \
                 correct the dataset, or let the loader skip the item (`on_failure` of its options)"
            ),
            LoaderError::Collate { worker, samples, epoch, cause } => {
                write!(f, "{worker} cannot make a batch of {samples} in epoch {epoch}: {cause}")
            }
            LoaderError::Memory { worker, epoch, cause } => write!(
                f,
                "{worker} has no memory for a batch of epoch {epoch}: {cause}; \
                 use a smaller batch or a smaller `prefetch_factor`, or remove `memory`"
            ),
            LoaderError::Init { worker, cause } => write!(f, "`worker_init` failed in {worker}: {cause}"),
            LoaderError::Pin { epoch, cause } => write!(
                f,
                "a batch of epoch {epoch} cannot be pinned: {cause}; check the device, or disable pinning"
            ),
            LoaderError::Timeout { after, doing } => {
                write!(f, "no batch within {after:?}: {doing}; speed up the dataset, or raise `timeout`")
            }
            LoaderError::Spawn { who, cause } => write!(
                f,
                "cannot start {who}: {cause}; use fewer workers, or raise the limit on threads (ulimit -u)"
            ),
            LoaderError::Gone => f.write_str(
                "the workers have ended before the epoch; this is a bug in hexagram, please report it",
            ),
        }
    }
}

impl std::error::Error for LoaderError {}

impl From<SamplerError> for LoaderError {
    fn from(cause: SamplerError) -> Self {
        LoaderError::Sampler(cause)
    }
}

impl fmt::Debug for LoaderError {
    /// Writes the message, as a `main` that returns an error prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LoaderError {
    pub(super) fn options(what: impl Into<String>, remedy: &'static str) -> Self {
        LoaderError::Options { what: what.into(), remedy }
    }
}

/// A thread of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// A worker, from 0.
    Worker(usize),
    /// The calling thread, if there are no workers.
    Caller,
    /// The thread of the pinning stage.
    Pinner,
    /// The timer thread for futures.
    Clock,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Worker(id) => write!(f, "worker {id}"),
            Actor::Caller => f.write_str("the caller's thread"),
            Actor::Pinner => f.write_str("pinning"),
            Actor::Clock => f.write_str("clock"),
        }
    }
}

fn tries(attempts: u32) -> String {
    if attempts > 1 { format!(" ({attempts} tries)") } else { String::new() }
}

/// A caught panic, as an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(pub String);

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.0)
    }
}

impl std::error::Error for Panicked {}
