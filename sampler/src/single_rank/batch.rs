//! PyTorch's `BatchSampler`: groups the draws of another sampler.
//!
//! Source: `torch/utils/data/sampler.py`.

use crate::error::SamplerError;
use crate::parts::EpochPart;
use crate::sampler::{Draws, Sampler};

/// Batches of `batch_size` consecutive draws of another sampler.
///
/// ```
/// use hexagram_sampler::{BatchSampler, Sampler, SequentialSampler};
///
/// let batches = BatchSampler::new(SequentialSampler::new(5)?, 2, false)?;
/// assert_eq!(batches.iter().collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone)]
pub struct BatchSampler<S> {
    sampler: S,
    batch_size: usize,
    drop_last: bool,
}

impl<S: Sampler<Item = usize>> BatchSampler<S> {
    /// Groups the draws of `sampler`; `drop_last` drops a last batch that is not full.
    ///
    /// # Errors
    ///
    /// [`SamplerError::EmptyBatch`] if `batch_size` is 0.
    pub fn new(sampler: S, batch_size: usize, drop_last: bool) -> Result<Self, SamplerError> {
        if batch_size == 0 {
            return Err(SamplerError::EmptyBatch);
        }
        Ok(BatchSampler { sampler, batch_size, drop_last })
    }

    /// Returns the number of batches of `draws` draws.
    fn batches(&self, draws: usize) -> usize {
        if self.drop_last { draws / self.batch_size } else { draws.div_ceil(self.batch_size) }
    }
}

impl<S: Sampler<Item = usize>> Sampler for BatchSampler<S> {
    type Item = Vec<usize>;

    fn len(&self) -> usize {
        self.batches(self.sampler.len())
    }

    fn epoch(&self) -> u64 {
        self.sampler.epoch()
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.sampler.set_epoch(epoch);
    }

    fn stride(&self) -> usize {
        self.sampler.stride().saturating_mul(self.batch_size)
    }

    /// Returns the fingerprint of the inner sampler: a run may continue with a different batch size.
    fn fingerprint(&self) -> u64 {
        self.sampler.fingerprint()
    }

    fn grouping(&self) -> usize {
        self.sampler.grouping()
    }

    fn set_parts(&mut self, parts: &[EpochPart]) {
        self.sampler.set_parts(parts);
    }

    fn iter_from(&self, position: usize) -> Draws<Vec<usize>> {
        let mut draws = self.sampler.iter_from(position);
        let batches = self.batches(draws.len());
        let batch_size = self.batch_size;
        Box::new((0..batches).map(move |_| draws.by_ref().take(batch_size).collect()))
    }
}
