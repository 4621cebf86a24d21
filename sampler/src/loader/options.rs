//! Options of a loader, with PyTorch's defaults, and the combinations that make no sense.

use super::error::LoaderError;
use super::memory::Memory;
use super::worker::WorkerInfo;
use crate::dataset::Cause;
use crate::sampler::Sampler;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Most threads that load: far above the processors of any machine.
const MAX_WORKERS: usize = 1024;

/// Longest timeout: a clock cannot represent a deadline that is much further away.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Batches a worker prepares ahead unless told otherwise.
const PREFETCH: usize = 2;

/// A function that each worker calls once, before its first sample.
pub type WorkerInit = Arc<dyn Fn(&WorkerInfo) -> Result<(), Cause> + Send + Sync>;

/// Options of a [`DataLoader`](super::DataLoader). Names and defaults are those of PyTorch's `DataLoader`, except that
/// `num_workers` is `workers` and `generator` is `seed`. The collate function is an argument of
/// [`DataLoader::with_collate`](super::DataLoader::with_collate), and `pin_memory` is `memory`.
pub struct LoaderOptions {
    /// Samples in a batch; `None` for single samples, with
    /// [`DataLoader::unbatched`](super::DataLoader::unbatched).
    pub batch_size: Option<usize>,
    /// True if each epoch has a random order: `randperm`, seeded with `seed + epoch` like PyTorch's
    /// `DistributedSampler`.
    pub shuffle: bool,
    /// Sampler that says which samples come in which order, instead of `shuffle`.
    pub sampler: Option<Box<dyn Sampler<Item = usize>>>,
    /// Sampler that says which batches come in which order, instead of `batch_size`, `shuffle`, `sampler` and
    /// `drop_last`.
    pub batch_sampler: Option<Box<dyn Sampler<Item = Vec<usize>>>>,
    /// Threads that load, 1024 at most; with 0 the caller's thread does, when a batch is asked for. A warning says where
    /// they are more than the cores.
    pub workers: usize,
    /// Leaves out a last batch that is not full; of an iterable dataset, each worker's.
    pub drop_last: bool,
    /// Longest wait for a batch of the workers, after which [`LoaderError::Timeout`] says what each of them does. `None`
    /// means that the wait has no end, as in PyTorch; a warning says the same every five minutes.
    pub timeout: Option<Duration>,
    /// Called by each worker before its first sample.
    pub worker_init: Option<WorkerInit>,
    /// Base of all random numbers: of the shuffled order, of workers, of samples.
    pub seed: u64,
    /// Batches prepared ahead for each worker; `None` means 2.
    pub prefetch_factor: Option<usize>,
    /// Keeps the workers from one epoch to the next, which they begin to load while the caller is between epochs.
    pub persistent_workers: bool,
    /// True if batches come in the sampler's order; otherwise they come as they get ready.
    pub in_order: bool,
    /// Treatment of a sample that cannot be loaded.
    pub on_failure: OnFailure,
    /// Number of new attempts to load such a sample before that.
    pub retries: u32,
    /// Pause before each new attempt.
    pub retry_pause: Duration,
    /// Memory that the arrays of a batch are put in, filled there by the workers: PyTorch's `pin_memory`, with
    /// `hexagram::Pinned`. `None` means the heap.
    pub memory: Option<Arc<dyn Memory>>,
}

/// Treatment of a sample that cannot be loaded: the dataset returned an error or panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The epoch ends with an error that names sample and worker.
    #[default]
    Fail,
    /// The batch is made without the sample, and [`DataLoader::skipped`](super::DataLoader::skipped) counts it. A batch
    /// that loses all its samples is left out, so that ranks may have different numbers of steps. An iterable dataset
    /// that fails more than a thousand times in a row ends the epoch all the same, because it may never do better.
    Skip,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        LoaderOptions {
            batch_size: Some(1),
            shuffle: false,
            sampler: None,
            batch_sampler: None,
            workers: 0,
            drop_last: false,
            timeout: None,
            worker_init: None,
            seed: 0,
            prefetch_factor: None,
            persistent_workers: false,
            in_order: true,
            on_failure: OnFailure::Fail,
            retries: 0,
            retry_pause: Duration::from_millis(100),
            memory: None,
        }
    }
}

impl fmt::Debug for LoaderOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderOptions { batch_size, shuffle, workers, drop_last, timeout, seed, .. } = self;
        let mut fields = f.debug_struct("LoaderOptions");
        fields.field("batch_size", batch_size).field("shuffle", shuffle).field("workers", workers);
        fields.field("drop_last", drop_last).field("timeout", timeout).field("seed", seed);
        fields.finish_non_exhaustive()
    }
}

/// Contradiction: true if it is there, what contradicts itself, and what to do.
type Refusal = (bool, &'static str, &'static str);

impl LoaderOptions {
    /// Returns the number of batches that may be under way at once.
    pub(super) fn outstanding(&self) -> usize {
        self.workers.saturating_mul(self.prefetch_factor.unwrap_or(PREFETCH)).max(1)
    }

    /// Returns the longest wait for a batch, if the wait has an end.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.min(LONGEST))
    }

    /// Refuses what contradicts itself, whatever the dataset.
    pub(super) fn check(&self) -> Result<(), LoaderError> {
        let refusals = self.refusals_of_order().into_iter().chain(self.refusals_of_workers());
        match refusals.into_iter().find(|(contradicts, ..)| *contradicts) {
            Some((_, what, remedy)) => Err(LoaderError::options(what, remedy)),
            None => Ok(()),
        }
    }

    fn refusals_of_order(&self) -> [Refusal; 4] {
        let others = self.batch_size != Some(1) || self.shuffle || self.sampler.is_some() || self.drop_last;
        [
            (self.batch_size == Some(0), "`batch_size` is 0", "set it to 1 or more"),
            (
                self.sampler.is_some() && self.shuffle,
                "`sampler` and `shuffle` both set the order",
                "leave out `shuffle`, and shuffle in the sampler",
            ),
            (
                self.batch_sampler.is_some() && others,
                "`batch_sampler` makes whole batches, so that `batch_size`, `shuffle`, `sampler` and `drop_last` \
                 would have no effect",
                "leave them out",
            ),
            (
                self.batch_size.is_none() && self.drop_last,
                "`drop_last` drops a batch, but `batch_size` is none",
                "leave out `drop_last`",
            ),
        ]
    }

    fn refusals_of_workers(&self) -> [Refusal; 7] {
        let inline = self.workers == 0;
        let remedy = "set `workers` to 1 or more, or leave it out";
        [
            (inline && self.prefetch_factor.is_some(), "`prefetch_factor` requires workers", remedy),
            (inline && self.persistent_workers, "`persistent_workers` requires workers", remedy),
            (
                inline && self.timeout.is_some(),
                "`timeout` cannot interrupt the caller's own thread, which loads when there are no workers",
                remedy,
            ),
            (inline && self.worker_init.is_some(), "`worker_init` requires workers", remedy),
            (self.timeout == Some(Duration::ZERO), "`timeout` is zero", "leave it out to wait without end"),
            (self.prefetch_factor == Some(0), "`prefetch_factor` is 0", "set it to 1 or more"),
            (self.workers > MAX_WORKERS, "`workers` is above 1024", "use some workers for each processor"),
        ]
    }

    /// Refuses what an iterable dataset, which has an order of its own, cannot follow.
    pub(super) fn check_iterable(&self) -> Result<(), LoaderError> {
        if self.shuffle || self.sampler.is_some() || self.batch_sampler.is_some() {
            let what = "an iterable dataset has an order of its own, so that `shuffle`, `sampler` and \
                        `batch_sampler` would have no effect";
            return Err(LoaderError::options(what, "leave them out, and shuffle in the dataset"));
        }
        if self.retries > 0 {
            let what = "`retries` cannot ask an iterable dataset for the same item again";
            return Err(LoaderError::options(what, "leave it out, and retry in the dataset"));
        }
        Ok(())
    }
}
