//! Random numbers for one sample: small, quick to seed, and independent of the worker.
//!
//! SplitMix64: `s ← s + γ`, output `mix(s)`.
//! Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).

use crate::rng::{GOLDEN, mixed};

/// Random numbers for the augmentations of one sample.
///
/// Deterministic: it depends on the seed, the epoch and the index. Not for secrets.
#[derive(Debug, Clone)]
pub struct SampleGenerator {
    state: u64,
}

impl SampleGenerator {
    /// Creates the generator of a sample in an epoch.
    pub fn new(seed: u64, epoch: u64, index: usize) -> Self {
        let state = [epoch, index as u64]
            .into_iter()
            .fold(mixed(seed), |state, word| mixed(state.wrapping_add(GOLDEN) ^ word));
        SampleGenerator { state }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mixed(self.state)
    }

    /// Returns a number from 0 (included) to 1 (excluded).
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a whole number below `end`; 0 if `end` is 0. The bias is less than `end` / 2^64.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut generator = SampleGenerator { state: 1_234_567 };
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| generator.next_u64()), expected);
    }

    #[test]
    fn seeds_epochs_and_samples_differ() {
        let mut firsts = Vec::new();
        for (seed, epoch, index) in
            (0..8).flat_map(|s| (0..8).flat_map(move |e| (0..8).map(move |i| (s, e, i))))
        {
            firsts.push(SampleGenerator::new(seed, epoch, index as usize).next_u64());
        }
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 512);
    }

    #[test]
    fn ranges_are_kept() {
        let mut generator = SampleGenerator::new(1, 2, 3);
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&generator.next_f64()));
            assert!(generator.below(7) < 7);
        }
        assert_eq!(generator.below(0), 0);
    }
}
