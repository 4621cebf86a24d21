//! PyTorch's `SequentialSampler`: the data set in its own order.

use crate::error::SamplerError;
use crate::ranks::warn_if_nothing;
use crate::sampler::{Draws, Sampler, fingerprint};

/// Samples `0, 1, 2, …`, the same in every epoch.
///
/// ```
/// use hexagram_sampler::{Sampler, SequentialSampler};
///
/// let sampler = SequentialSampler::new(3)?;
/// assert_eq!(sampler.iter().collect::<Vec<_>>(), [0, 1, 2]);
/// # Ok::<(), hexagram_sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequentialSampler {
    len: usize,
    epoch: u64,
}

impl SequentialSampler {
    /// Creates the sampler of `len` samples. An empty data set has no draws, and a warning reports it.
    ///
    /// # Errors
    ///
    /// Currently none.
    pub fn new(len: usize) -> Result<Self, SamplerError> {
        warn_if_nothing(0, len, 1);
        Ok(SequentialSampler { len, epoch: 0 })
    }
}

impl Sampler for SequentialSampler {
    type Item = usize;

    fn len(&self) -> usize {
        self.len
    }

    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn fingerprint(&self) -> u64 {
        fingerprint("sequential", [self.len as u64])
    }

    fn iter_from(&self, position: usize) -> Draws<usize> {
        Box::new(position..self.len.max(position))
    }
}
