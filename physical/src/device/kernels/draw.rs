//! Random words: what seeds and keys are made of.

/// SplitMix64: one step of Steele, Lea and Flood's generator, whose output passes for random in every bit.
#[inline]
pub fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// What the draws of every block follow from.
#[derive(Debug, Clone, Copy)]
pub struct Keys(u64);

impl Keys {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        Keys(mix(seed))
    }

    /// The key of a block.
    #[inline]
    pub fn of(self, block: usize) -> u64 {
        mix(self.0 ^ block as u64)
    }
}
