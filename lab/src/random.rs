//! Random numbers of the tasks, from the sampler's generator.

use hexagram::sampler::Mersenne;

/// Generator of real numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(Mersenne);

impl Random {
    /// Starts from a seed; only its low 32 bits count.
    pub(crate) fn new(seed: u64) -> Self {
        Random(Mersenne::new(seed))
    }

    /// Returns a number below `range`, which is not 0.
    pub(crate) fn below(&mut self, range: usize) -> usize {
        self.0.below(range as u64) as usize
    }

    /// Returns a number from `low` up to `high`, which is excluded.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.0.uniform()
    }

    /// Returns a number of mean 0 and variance 1, near to normal: the sum of twelve uniform ones, which is the same on
    /// every machine.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.0.uniform()).sum::<f64>() - 6.0
    }

    /// Returns numbers that are uniform within ±`bound`.
    pub(crate) fn uniform(&mut self, count: usize, bound: f64) -> Vec<f32> {
        (0..count).map(|_| self.between(-bound, bound) as f32).collect()
    }
}
