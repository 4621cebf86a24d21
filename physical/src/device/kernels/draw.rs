//! Random words, for seeds and keys.

/// Mixes a word with SplitMix64: one step of the generator of Steele, Lea and Flood, whose output bits pass for
/// random.
#[inline]
pub fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Keys that determine the draws of every block.
#[derive(Debug, Clone, Copy)]
pub struct Keys(u64);

impl Keys {
    /// Derives the keys from a seed.
    pub fn new(seed: u64) -> Self {
        Keys(mix(seed))
    }

    /// Returns the key of a block.
    #[inline]
    pub fn of(self, block: usize) -> u64 {
        mix(self.0 ^ block as u64)
    }
}
