//! Sources of samples.
//!
//! A [`Dataset`] gives any sample by its index; an [`IterableDataset`] only one after another, for instance from a
//! network stream. Both are shared by all workers of a loader, which are threads of one process: a dataset is opened
//! once and needs no copies.
//!
//! | file | dataset |
//! |---|---|
//! | `idx.rs` | MNIST and its relatives: IDX files |
//! | `cifar.rs` | CIFAR-10, binary version |
//! | `csv.rs` | comma-separated values |
//! | `rows.rs` | equally shaped samples in one piece of memory, or records of fixed size in a mapped file |
//! | `lines.rs` | lines of text |
//! | `combine.rs` | datasets made of datasets: vectors, pairs, transformed samples |

mod cifar;
mod combine;
mod csv;
mod error;
mod idx;
mod lines;
mod map;
mod rows;

use crate::loader::{Pool, SampleGenerator, WorkerInfo};
pub use cifar::Cifar10;
pub use combine::{Items, Transformed, Zip};
pub use csv::{Csv, CsvNumbers, CsvOptions, Number};
pub use error::{Cause, DatasetError};
pub use idx::{Mnist, read_idx};
pub use lines::Lines;
pub use rows::Rows;

/// Samples that can be loaded in any order, by many threads at once.
///
/// ```
/// use hexagram_sampler::dataset::{Cause, Dataset, Fetch};
///
/// struct Squares;
///
/// impl Dataset for Squares {
///     type Sample = u64;
///
///     fn len(&self) -> usize {
///         1000
///     }
///
///     fn get(&self, index: usize, _: &Fetch<'_>) -> Result<u64, Cause> {
///         Ok((index * index) as u64)
///     }
/// }
/// ```
pub trait Dataset: Send + Sync {
    /// One sample, before it becomes part of a batch.
    type Sample;

    /// Returns the number of samples: valid indices are below.
    fn len(&self) -> usize;

    /// Returns true if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads one sample. May be called by several threads at once.
    ///
    /// # Errors
    ///
    /// Whatever the dataset likes; the loader adds the sample's index and the worker.
    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<Self::Sample, Cause>;

    /// Returns the same dataset with each sample transformed, in the worker that loads it; `fetch` has a generator for
    /// random augmentations.
    fn map<T, F>(self, transform: F) -> Transformed<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Sample, &Fetch<'_>) -> Result<T, Cause> + Send + Sync,
    {
        Transformed::new(self, transform)
    }
}

/// Samples that come one after another.
///
/// Each worker of a loader has its own pass over the dataset, so that [`iter`](Self::iter) has to look at its
/// [`WorkerInfo`] and give each worker another part; otherwise every sample comes once a worker.
#[allow(clippy::len_without_is_empty, reason = "a length that is not known is neither")]
pub trait IterableDataset: Send + Sync {
    /// One sample, before it becomes part of a batch.
    type Sample;

    /// Returns the number of samples that all workers together will give, if that is known. A loader warns when more
    /// come.
    fn len(&self) -> Option<usize> {
        None
    }

    /// Begins a pass over this worker's part, in each epoch anew.
    ///
    /// # Errors
    ///
    /// Whatever the dataset likes; the loader adds the worker.
    fn iter(&self, worker: &WorkerInfo) -> Result<Pass<Self::Sample>, Cause>;
}

/// One worker's pass over an [`IterableDataset`].
pub type Pass<S> = Box<dyn Iterator<Item = Result<S, Cause>> + Send>;

/// Marks an [`IterableDataset`] for the loader: `DataLoader::new(Iterable(stream), options)`.
#[derive(Debug, Clone, Copy)]
pub struct Iterable<D>(pub D);

/// For whom and for what a sample is loaded.
#[derive(Debug, Clone, Copy)]
pub struct Fetch<'a> {
    worker: &'a WorkerInfo,
    pool: &'a Pool,
    index: usize,
}

impl<'a> Fetch<'a> {
    /// Creates the context in which `worker` fetches the sample `index`.
    pub fn new(worker: &'a WorkerInfo, pool: &'a Pool, index: usize) -> Self {
        Fetch { worker, pool, index }
    }

    /// Returns the worker that loads the sample.
    pub fn worker(&self) -> &'a WorkerInfo {
        self.worker
    }

    /// Returns memory for samples that are computed: it is used again once the batch is made.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Returns random numbers of this sample in this epoch. They depend on the loader's seed, the epoch and the
    /// sample's index, never on which worker loads it: augmentations stay the same with another number of workers or
    /// ranks, and differ from epoch to epoch.
    pub fn generator(&self) -> SampleGenerator {
        SampleGenerator::new(self.worker.base_seed, self.worker.epoch, self.index)
    }
}
