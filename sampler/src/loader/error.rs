//! Everything that can go wrong while loading. Every error names the worker, what it was doing, why that failed, and
//! what to do.

use crate::error::SamplerError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Cause of a batch that did not come.
///
/// An error ends the epoch; [`DataLoader::state`](super::DataLoader::state) still stands before the batch that
/// failed, so that a run can go on there.
#[derive(Clone)]
#[non_exhaustive]
pub enum LoaderError {
    /// Options that contradict each other or the dataset.
    Options {
        /// Contradiction between options.
        what: String,
        /// Instruction that mends it.
        remedy: &'static str,
    },

    /// Nothing can be sampled, for instance because the dataset is empty.
    Sampler(SamplerError),

    /// A state that belongs to a loader with other options.
    State {
        /// Differences of the state.
        theirs: String,
        /// The same of this loader.
        ours: String,
    },

    /// A sample could not be loaded.
    Sample {
        /// The sample.
        index: usize,
        /// Thread that tried.
        worker: Who,
        /// In which epoch.
        epoch: u64,
        /// Number of attempts.
        attempts: u32,
        /// The dataset's own error, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// An iterable dataset failed.
    Item {
        /// Number of the item among those that this worker has had in this epoch, from 0.
        item: usize,
        /// Thread that tried.
        worker: Who,
        /// In which epoch.
        epoch: u64,
        /// The dataset's own error, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// Samples did not become a batch.
    Collate {
        /// Thread that tried.
        worker: Who,
        /// The samples, in words: the one at fault and the first, if that is known.
        samples: String,
        /// In which epoch.
        epoch: u64,
        /// The collate function's own error, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// There was no memory for a batch where it was to be put.
    Memory {
        /// Thread that tried.
        worker: Who,
        /// In which epoch.
        epoch: u64,
        /// The memory's own error.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The initialization of a worker failed.
    Init {
        /// Worker that failed.
        worker: Who,
        /// The function's own error, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The pinning stage failed.
    Pin {
        /// In which epoch.
        epoch: u64,
        /// The stage's own error, or its panic.
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// No batch came in time.
    Timeout {
        /// Time for which the loader waited.
        after: Duration,
        /// Present work of each worker, in words.
        doing: String,
    },

    /// The system refused another thread.
    Spawn {
        /// Thread that could not be started.
        who: Who,
        /// The system's own words.
        cause: Arc<std::io::Error>,
    },

    /// Workers that ended without a reason.
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
                 make the loader and its sampler with the same options, their seeds included"
            ),
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
                 use a smaller batch or a smaller `prefetch_factor`, or leave out `memory`"
            ),
            LoaderError::Init { worker, cause } => write!(f, "`worker_init` failed in {worker}: {cause}"),
            LoaderError::Pin { epoch, cause } => write!(
                f,
                "a batch of epoch {epoch} cannot be pinned: {cause}; see that the device is there, or leave out pinning"
            ),
            LoaderError::Timeout { after, doing } => {
                write!(f, "no batch within {after:?}: {doing}; make the dataset faster, or raise `timeout`")
            }
            LoaderError::Spawn { who, cause } => write!(
                f,
                "cannot start {who}: {cause}; use fewer workers, or raise the limit on threads (ulimit -u)"
            ),
            LoaderError::Gone => f.write_str(
                "the workers have ended before the epoch; this is a defect of hexagram, please report it",
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
    /// Writes the text for people: it is what a `main` that returns an error prints.
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
pub enum Who {
    /// A worker, from 0.
    Worker(usize),
    /// The thread that asks for batches, when there are no workers.
    Caller,
    /// The thread of the pinning stage.
    Pinner,
    /// The thread that watches the time for futures.
    Clock,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Worker(id) => write!(f, "worker {id}"),
            Who::Caller => f.write_str("the caller's thread"),
            Who::Pinner => f.write_str("pinning"),
            Who::Clock => f.write_str("clock"),
        }
    }
}

fn tries(attempts: u32) -> String {
    if attempts > 1 { format!(" ({attempts} tries)") } else { String::new() }
}

/// A panic, caught and made an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panicked(pub String);

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it panicked: {}", self.0)
    }
}

impl std::error::Error for Panicked {}
