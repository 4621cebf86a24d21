//! Sources of samples.
//!
//! A [`Dataset`] provides any sample by its index; an [`IterableDataset`] provides samples in sequence, for instance
//! from a network stream. All workers of a loader, which are threads of one process, share the dataset: it is opened
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

/// Samples that can be loaded in any order, by several threads at the same time.
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

    /// Returns the number of samples; valid indices are below it.
    fn len(&self) -> usize;

    /// Returns true if the dataset has no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Loads one sample. Several threads may call this at the same time.
    ///
    /// # Errors
    ///
    /// Any error; the loader adds the index of the sample and the worker.
    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<Self::Sample, Cause>;

    /// Returns a dataset whose samples are transformed by the worker that loads them; `fetch` has a generator for
    /// random augmentations.
    fn map<T, F>(self, transform: F) -> Transformed<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Sample, &Fetch<'_>) -> Result<T, Cause> + Send + Sync,
    {
        Transformed::new(self, transform)
    }
}

/// Samples that are provided in sequence.
///
/// Each worker of a loader makes its own pass over the dataset. Therefore [`iter`](Self::iter) must use its
/// [`WorkerInfo`] to return a different part for each worker; otherwise every worker returns every sample.
#[allow(clippy::len_without_is_empty, reason = "an unknown length is neither")]
pub trait IterableDataset: Send + Sync {
    /// One sample, before it becomes part of a batch.
    type Sample;

    /// Returns the total number of samples of all workers, if it is known. The loader warns if more samples arrive.
    fn len(&self) -> Option<usize> {
        None
    }

    /// Begins a pass over the part of this worker, once per epoch.
    ///
    /// # Errors
    ///
    /// Any error; the loader adds the worker.
    fn iter(&self, worker: &WorkerInfo) -> Result<Pass<Self::Sample>, Cause>;
}

/// The pass of one worker over an [`IterableDataset`].
pub type Pass<S> = Box<dyn Iterator<Item = Result<S, Cause>> + Send>;

/// Marks an [`IterableDataset`] for the loader: `DataLoader::new(Iterable(stream), options)`.
#[derive(Debug, Clone, Copy)]
pub struct Iterable<D>(pub D);

/// Context in which a sample is loaded.
#[derive(Debug, Clone, Copy)]
pub struct Fetch<'a> {
    worker: &'a WorkerInfo,
    pool: &'a Pool,
    index: usize,
}

impl<'a> Fetch<'a> {
    /// Creates the context in which `worker` loads the sample `index`.
    pub fn new(worker: &'a WorkerInfo, pool: &'a Pool, index: usize) -> Self {
        Fetch { worker, pool, index }
    }

    /// Returns the worker that loads the sample.
    pub fn worker(&self) -> &'a WorkerInfo {
        self.worker
    }

    /// Returns memory for computed samples; it is reused after the batch is made.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// Returns the random numbers of this sample in this epoch. They depend on the seed of the loader, the epoch and
    /// the index, not on the worker. Augmentations are therefore the same with any number of workers or ranks, and
    /// differ between epochs.
    pub fn generator(&self) -> SampleGenerator {
        SampleGenerator::new(self.worker.base_seed, self.worker.epoch, self.index)
    }
}
