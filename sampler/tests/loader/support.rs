//! Datasets for the tests.

use hexagram_sampler::dataset::{Cause, Dataset, Fetch};
use hexagram_sampler::loader::{DataLoader, LoaderOptions};
use std::sync::Arc;
use std::time::Duration;

/// Long enough for any machine, short enough for a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Samples that are their own index, loaded by a function.
pub(crate) struct Numbers<F> {
    pub(crate) len: usize,
    pub(crate) load: F,
}

impl<F: Fn(usize, &Fetch<'_>) -> Result<usize, Cause> + Send + Sync> Dataset for Numbers<F> {
    type Sample = usize;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, fetch: &Fetch<'_>) -> Result<usize, Cause> {
        (self.load)(index, fetch)
    }
}

/// `0..len`, loaded without a hitch.
pub(crate) fn numbers(len: usize) -> Arc<impl Dataset<Sample = usize>> {
    Arc::new(Numbers { len, load: |index, _: &Fetch<'_>| Ok(index) })
}

/// `0..len`, of which samples take very different times, so that workers overtake each other.
pub(crate) fn uneven(len: usize) -> Arc<impl Dataset<Sample = usize>> {
    let load = |index: usize, _: &Fetch<'_>| {
        (0..index * 7919 % 97 * 20).for_each(|step| {
            std::hint::black_box(step);
        });
        if index.is_multiple_of(13) {
            std::thread::yield_now();
        }
        Ok(index)
    };
    Arc::new(Numbers { len, load })
}

pub(crate) fn options(batch: usize, workers: usize) -> LoaderOptions {
    let timeout = (workers > 0).then_some(PATIENCE);
    LoaderOptions { batch_size: Some(batch), workers, timeout, ..LoaderOptions::default() }
}

/// The batches of the next epoch, as a loader collates numbers.
pub(crate) fn epoch(loader: &mut DataLoader<hexagram_sampler::loader::Array<usize>>) -> Vec<Vec<usize>> {
    loader.iter().map(|batch| batch.unwrap().to_vec()).collect()
}
