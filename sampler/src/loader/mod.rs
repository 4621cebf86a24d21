//! The loader: batches of a dataset, prepared by threads ahead of the training loop.
//!
//! ```
//! use hexagram_sampler::dataset::{Items, Zip};
//! use hexagram_sampler::loader::{DataLoader, LoaderOptions};
//!
//! let dataset = Zip::new(Items((0..100).map(|i| i as f32).collect()), Items(vec![1i64; 100]))?;
//! let options = LoaderOptions { batch_size: Some(8), shuffle: true, workers: 2, ..Default::default() };
//! let mut loader = DataLoader::new(dataset, options)?;
//! for _epoch in 0..3 {
//!     for batch in loader.iter() {
//!         let (features, labels) = batch?;
//!         assert_eq!(features.len(), labels.len());
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! The loader uses system threads and clocks, even if ranks are simulated, because reading and decoding take real
//! time.
//!
//! | file | content |
//! |---|---|
//! | `options.rs` | options, and their contradictions |
//! | `epoch.rs` | iteration, blocking and asynchronous |
//! | `plan.rs` | order of batches, and the state to resume from |
//! | `arrivals.rs` | the stable order |
//! | `worker/` | worker threads: load, retry, skip, collate |
//! | `batch/` | batches and their memory, on the heap or elsewhere |
//! | `bell.rs` | wake-up of futures |
//! | `error.rs` | errors |

mod arrivals;
mod batch;
mod bell;
mod epoch;
mod error;
mod options;
mod plan;
mod worker;

use crate::dataset::{Cause, Dataset, Iterable, IterableDataset};
use crate::distributed::{DistributedOptions, DistributedSampler};
use crate::sampler::Sampler;
use crate::single_rank::{BatchSampler, SequentialSampler};
pub use batch::{
    Array, Buffer, Bytes, Collate, CollateError, Element, MAX_DIMENSIONS, Memory, Misfit, Pool, PoolUsage,
    Shape, ShapeError, Store, padded,
};
pub use epoch::Epoch;
use epoch::LoaderRun;
pub use error::{Actor, LoaderError, Panicked};
pub use options::{LoaderOptions, OnFailure, WorkerInit};
use plan::EpochPlan;
pub use plan::LoaderState;
use std::sync::Arc;
use worker::{Assemble, ByIndex, Fetchers, InTurn, Policy, Recipe};
pub use worker::{SampleGenerator, WorkerInfo};

/// Makes batches `B` of the samples of a dataset, epoch after epoch.
///
/// The order of batches depends on the sampler alone, not on the number of workers (unless
/// [`LoaderOptions::in_order`] is false). The first epoch is the current one of the sampler; the loader advances the
/// sampler itself. Memory: at most `workers × prefetch_factor` batches in addition to those that the caller holds, in
/// reused buffers.
///
/// ```
/// use hexagram_sampler::dataset::Items;
/// use hexagram_sampler::loader::{DataLoader, LoaderOptions};
///
/// let options = LoaderOptions { batch_size: Some(2), ..Default::default() };
/// let mut loader = DataLoader::new(Items(vec![1.0f32, 2.0, 3.0]), options)?;
/// let batches = loader.iter().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(batches.iter().map(|batch| batch.len()).collect::<Vec<_>>(), [2, 1]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub struct DataLoader<B> {
    recipe: Recipe<B>,
    plan: EpochPlan,
    /// State kept between calls.
    run: LoaderRun<B>,
    in_order: bool,
    outstanding: usize,
    persistent: bool,
    /// Number of items that an iterable dataset has announced.
    promised: Option<usize>,
    /// Batches in an epoch, if known in advance.
    batches: Option<usize>,
}

/// A [`Dataset`], or an [`IterableDataset`] in its wrapper [`Iterable`].
pub trait Source: Sized {
    /// One sample, before it becomes part of a batch.
    type Sample: Send + 'static;

    #[doc(hidden)]
    fn parts<B: Send + 'static>(
        self,
        assemble: Assemble<Self::Sample, B>,
        options: &mut LoaderOptions,
    ) -> Result<Parts<B>, LoaderError>;
}

/// Parts that a loader takes from its dataset.
#[doc(hidden)]
pub struct Parts<B> {
    plan: EpochPlan,
    fetchers: Fetchers<B>,
    promised: Option<usize>,
    batches: Option<usize>,
}

impl<D: Dataset<Sample: Send + 'static> + 'static> Source for D {
    type Sample = D::Sample;

    fn parts<B: Send + 'static>(
        self,
        assemble: Assemble<Self::Sample, B>,
        options: &mut LoaderOptions,
    ) -> Result<Parts<B>, LoaderError> {
        let plan = EpochPlan::batches(batches(self.len(), options)?);
        let (dataset, policy): (Arc<dyn Dataset<Sample = D::Sample>>, _) =
            (Arc::new(self), Policy::from(&*options));
        let fetchers: Fetchers<B> = Arc::new(move || {
            Box::new(ByIndex { dataset: dataset.clone(), assemble: assemble.clone(), policy })
        });
        Ok(Parts { batches: plan.len(), plan, fetchers, promised: None })
    }
}

impl<D: IterableDataset<Sample: Send + 'static> + 'static> Source for Iterable<D> {
    type Sample = D::Sample;

    fn parts<B: Send + 'static>(
        self,
        assemble: Assemble<Self::Sample, B>,
        options: &mut LoaderOptions,
    ) -> Result<Parts<B>, LoaderError> {
        options.check_iterable()?;
        let batch = options.batch_size.unwrap_or(1);
        let promised = self.0.len();
        let count = |items: usize| if options.drop_last { items / batch } else { items.div_ceil(batch) };
        let (dataset, policy): (Arc<dyn IterableDataset<Sample = D::Sample>>, _) =
            (Arc::new(self.0), Policy::from(&*options));
        let fetchers: Fetchers<B> = Arc::new(move || {
            Box::new(InTurn { dataset: dataset.clone(), assemble: assemble.clone(), policy, pass: None })
        });
        Ok(Parts {
            plan: EpochPlan::passes(batch, options.workers, options.drop_last),
            fetchers,
            promised,
            batches: promised.map(count),
        })
    }
}

/// Returns the order of batches that the options describe.
fn batches(
    len: usize,
    options: &mut LoaderOptions,
) -> Result<Box<dyn Sampler<Item = Vec<usize>>>, LoaderError> {
    if let Some(batches) = options.batch_sampler.take() {
        return Ok(batches);
    }
    let samples: Box<dyn Sampler<Item = usize>> = match options.sampler.take() {
        Some(sampler) => sampler,
        None if options.shuffle => {
            let whole = DistributedOptions { len, replicas: 1, seed: options.seed, ..Default::default() };
            Box::new(DistributedSampler::new(whole)?)
        }
        None => Box::new(SequentialSampler::new(len)?),
    };
    Ok(Box::new(BatchSampler::new(samples, options.batch_size.unwrap_or(1), options.drop_last)?))
}

/// Warns if workers outnumber cores, as PyTorch does.
fn warn_of_many(workers: usize) {
    let cores = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    if workers > cores {
        tracing::warn!(
            "a loader has {workers} workers for {cores} cores; more than one per core are rarely faster"
        );
    }
}

impl<B: Send + 'static> DataLoader<B> {
    /// Creates a loader of samples that implement [`Collate`].
    ///
    /// # Errors
    ///
    /// [`LoaderError`] if options contradict each other, or the dataset is empty.
    pub fn new<S>(dataset: S, options: LoaderOptions) -> Result<Self, LoaderError>
    where
        S: Source<Sample: Collate<Batch = B>>,
    {
        Self::with_collate(dataset, options, |samples, pool| Ok(Collate::collate(samples, pool)?))
    }

    /// Creates a loader with a function that makes a batch of samples. It runs in the workers, and takes memory from
    /// the pool of the loader.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_collate<S, F>(dataset: S, options: LoaderOptions, collate: F) -> Result<Self, LoaderError>
    where
        S: Source,
        F: Fn(Vec<S::Sample>, &Pool) -> Result<B, Cause> + Send + Sync + 'static,
    {
        options.check()?;
        if options.batch_size.is_none() {
            let what = "`batch_size` is none, and the collate function needs batches";
            return Err(LoaderError::options(what, "set `batch_size`, or use `DataLoader::unbatched`"));
        }
        Self::build(dataset, options, Arc::new(collate))
    }

    /// Creates a loader of single samples: PyTorch's `batch_size=None`. [`LoaderOptions::batch_size`] must be `None`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn unbatched<S: Source<Sample = B>>(dataset: S, options: LoaderOptions) -> Result<Self, LoaderError> {
        options.check()?;
        if options.batch_size.is_some() {
            let what = "a loader without batches has no `batch_size`";
            return Err(LoaderError::options(what, "set `batch_size` to none"));
        }
        let only = |samples: Vec<B>, _: &Pool| samples.into_iter().next().ok_or_else(|| "no sample".into());
        Self::build(dataset, options, Arc::new(only))
    }

    fn build<S: Source>(
        dataset: S,
        mut options: LoaderOptions,
        assemble: Assemble<S::Sample, B>,
    ) -> Result<Self, LoaderError> {
        let Parts { plan, fetchers, promised, batches } = dataset.parts(assemble, &mut options)?;
        let epoch = plan.epoch();
        warn_of_many(options.workers);
        let samples = Pool::new();
        let recipe = Recipe {
            fetchers,
            init: options.worker_init.take(),
            pin: None,
            workers: options.workers,
            base_seed: options.seed,
            patience: options.patience(),
            bell: Default::default(),
            pool: options.memory.take().map_or_else(|| samples.clone(), Pool::over),
            samples,
        };
        Ok(DataLoader {
            recipe,
            plan,
            run: LoaderRun::at(epoch),
            in_order: options.in_order,
            outstanding: options.outstanding(),
            persistent: options.persistent_workers,
            promised,
            batches,
        })
    }

    /// Passes each batch through `stage`, in a separate thread (without workers, in the calling thread), like
    /// PyTorch's thread of `pin_memory`. Use it for memory to which batches must be copied. Batches of arrays do not
    /// need it: the workers fill [`LoaderOptions::memory`] directly.
    pub fn pin(mut self, stage: impl Fn(B) -> Result<B, Cause> + Send + Sync + 'static) -> Self {
        self.stop();
        self.recipe.pin = Some(Arc::new(stage));
        self
    }

    /// Returns the number of batches in an epoch. For an iterable dataset it is an estimate, or `None` without a
    /// length.
    pub fn len(&self) -> Option<usize> {
        self.batches.map(|batches| self.plan.len().unwrap_or(batches))
    }

    /// Returns true if an epoch is known to have no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Returns the number of samples that have been skipped because they could not be loaded; see
    /// [`OnFailure::Skip`].
    pub fn skipped(&self) -> u64 {
        self.run.skipped
    }

    /// Returns the memory of batches, for collate functions; also that of datasets, unless [`LoaderOptions::memory`]
    /// is set.
    pub fn pool(&self) -> &Pool {
        &self.recipe.pool
    }
}
