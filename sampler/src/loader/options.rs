//! Options of a loader, with PyTorch's defaults, and checks for contradictions.

use super::batch::Memory;
use super::error::LoaderError;
use super::worker::WorkerInfo;
use crate::dataset::Cause;
use crate::sampler::Sampler;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of workers: far above the cores of any machine.
const MAX_WORKERS: usize = 1024;

/// Longest timeout: a later instant cannot be represented.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Default number of batches that a worker prepares ahead.
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
    /// Sampler that sets the order of samples, instead of `shuffle`.
    pub sampler: Option<Box<dyn Sampler<Item = usize>>>,
    /// Sampler that sets the batches and their order, instead of `batch_size`, `shuffle`, `sampler` and `drop_last`.
    pub batch_sampler: Option<Box<dyn Sampler<Item = Vec<usize>>>>,
    /// Number of loading threads, at most 1024. With 0, the calling thread loads each batch on demand. A warning
    /// reports more workers than cores.
    pub workers: usize,
    /// True to drop a last batch that is not full; with an iterable dataset, the last one of each worker.
    pub drop_last: bool,
    /// Maximum wait for a batch of the workers; afterwards [`LoaderError::Timeout`] describes the work of each.
    /// `None` waits forever, as in PyTorch, with a warning every five minutes.
    pub timeout: Option<Duration>,
    /// Function that each worker calls before its first sample.
    pub worker_init: Option<WorkerInit>,
    /// Seed of all random numbers: the shuffled order, the workers, the samples.
    pub seed: u64,
    /// Batches that each worker prepares ahead; `None` means 2.
    pub prefetch_factor: Option<usize>,
    /// True to keep the workers between epochs; they load the next epoch in advance.
    pub persistent_workers: bool,
    /// True for batches in the order of the sampler; false for the order of completion.
    pub in_order: bool,
    /// Action for a sample that cannot be loaded.
    pub on_failure: OnFailure,
    /// Number of retries before that action.
    pub retries: u32,
    /// Pause before each retry.
    pub retry_pause: Duration,
    /// Memory of the arrays of a batch, which the workers fill: with `hexagram::Pinned`, PyTorch's `pin_memory`.
    /// `None` means the heap.
    pub memory: Option<Arc<dyn Memory>>,
}

/// Action for a sample that cannot be loaded, because the dataset returned an error or panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// End the epoch with an error that names sample and worker.
    #[default]
    Fail,
    /// Make the batch without the sample, and count it in [`DataLoader::skipped`](super::DataLoader::skipped). A
    /// batch without any samples is dropped, so that ranks may have different numbers of steps. More than a thousand
    /// consecutive failures of an iterable dataset still end the epoch, since it may never recover.
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

/// Contradiction: whether it applies, its description, and the remedy.
type Contradiction = (bool, &'static str, &'static str);

impl LoaderOptions {
    /// Returns the maximum number of outstanding batches.
    pub(super) fn outstanding(&self) -> usize {
        self.workers.saturating_mul(self.prefetch_factor.unwrap_or(PREFETCH)).max(1)
    }

    /// Returns the longest wait for a batch, if the wait has an end.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.min(LONGEST))
    }

    /// Refuses contradictory options, for any dataset.
    pub(super) fn check(&self) -> Result<(), LoaderError> {
        let refusals = self.refusals_of_order().into_iter().chain(self.refusals_of_workers());
        match refusals.into_iter().find(|(contradicts, ..)| *contradicts) {
            Some((_, what, remedy)) => Err(LoaderError::options(what, remedy)),
            None => Ok(()),
        }
    }

    fn refusals_of_order(&self) -> [Contradiction; 4] {
        let others = self.batch_size != Some(1) || self.shuffle || self.sampler.is_some() || self.drop_last;
        [
            (self.batch_size == Some(0), "`batch_size` is 0", "set it to 1 or more"),
            (
                self.sampler.is_some() && self.shuffle,
                "`sampler` and `shuffle` both set the order",
                "remove `shuffle`, and shuffle in the sampler",
            ),
            (
                self.batch_sampler.is_some() && others,
                "`batch_sampler` makes whole batches, so that `batch_size`, `shuffle`, `sampler` and `drop_last` \
                 would have no effect",
                "remove them",
            ),
            (
                self.batch_size.is_none() && self.drop_last,
                "`drop_last` drops a batch, but `batch_size` is none",
                "leave out `drop_last`",
            ),
        ]
    }

    fn refusals_of_workers(&self) -> [Contradiction; 7] {
        let inline = self.workers == 0;
        let remedy = "set `workers` to 1 or more, or remove the option";
        [
            (inline && self.prefetch_factor.is_some(), "`prefetch_factor` requires workers", remedy),
            (inline && self.persistent_workers, "`persistent_workers` requires workers", remedy),
            (
                inline && self.timeout.is_some(),
                "`timeout` has no effect without workers, because the calling thread loads",
                remedy,
            ),
            (inline && self.worker_init.is_some(), "`worker_init` requires workers", remedy),
            (self.timeout == Some(Duration::ZERO), "`timeout` is zero", "remove it to wait forever"),
            (self.prefetch_factor == Some(0), "`prefetch_factor` is 0", "set it to 1 or more"),
            (self.workers > MAX_WORKERS, "`workers` is above 1024", "use at most 1024, such as one per core"),
        ]
    }

    /// Refuses options that an iterable dataset, with its own order, cannot follow.
    pub(super) fn check_iterable(&self) -> Result<(), LoaderError> {
        if self.shuffle || self.sampler.is_some() || self.batch_sampler.is_some() {
            let what = "an iterable dataset has an order of its own, so that `shuffle`, `sampler` and \
                        `batch_sampler` would have no effect";
            return Err(LoaderError::options(what, "remove them, and shuffle in the dataset"));
        }
        if self.retries > 0 {
            let what = "an iterable dataset cannot return an item again, as `retries` requires";
            return Err(LoaderError::options(what, "remove `retries`, and retry in the dataset"));
        }
        Ok(())
    }
}
