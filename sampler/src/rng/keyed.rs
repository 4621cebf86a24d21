//! A random order that takes no memory: a keyed permutation of `0..n`, computed entry by entry.
//!
//! ```text
//! domain   2^b >= n, the smallest from 2^8 on; a number is a pair (high, low) of b - b/2 and b/2 bits
//! round i  even: high ^= F(low, key[i])    odd: low ^= F(high, key[i])
//! walk     repeat all rounds until the number is below n: at most twice on average, if n is not tiny
//! ```
//!
//! Source: the Feistel network of Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
//! functions" (SIAM J. Comput. 17, 1988), unbalanced for odd `b`; cycle walking is from Black and Rogaway, "Ciphers
//! with arbitrary finite domains" (CT-RSA 2002). `F` and the key schedule are SplitMix64's (Steele, Lea and Flood,
//! OOPSLA 2014). Not for secrets.

/// Rounds, and bits of the smallest network: with fewer, some orders of a few entries are too frequent.
const ROUNDS: usize = 6;
const FEWEST_BITS: u32 = 8;

/// A random order of `0..len`, in constant memory.
///
/// Deterministic: the order follows from `len`, `seed` and `epoch`, and stays the same in later versions.
///
/// ```
/// let order = hexagram_sampler::KeyedPermutation::new(1_000_000_000, 42, 0); let place = order.at(999_999_999); // immediately
/// assert!(place < 1_000_000_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedPermutation {
    len: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl KeyedPermutation {
    /// Creates the order of `len` entries for a seed and an epoch.
    pub fn new(len: usize, seed: u64, epoch: u64) -> Self {
        let len = len as u64;
        let bits = (u64::BITS - len.saturating_sub(1).leading_zeros()).max(FEWEST_BITS);
        let low_bits = bits / 2;
        let mask = |bits: u32| (1 << bits) - 1;
        let mut state = mixed(seed) ^ mixed(epoch.wrapping_add(GOLDEN)).rotate_left(32);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mixed(state)
        });
        KeyedPermutation { len, low_bits, low_mask: mask(low_bits), high_mask: mask(bits - low_bits), keys }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the entry at `position`, counted modulo [`len`](Self::len).
    ///
    /// # Panics
    ///
    /// If there are no entries.
    #[inline]
    pub fn at(&self, position: usize) -> usize {
        let mut number = position as u64 % self.len;
        loop {
            number = self.rounds(number);
            if number < self.len {
                return number as usize;
            }
        }
    }

    #[inline]
    fn rounds(&self, number: u64) -> u64 {
        let mut high = number >> self.low_bits;
        let mut low = number & self.low_mask;
        for keys in self.keys.chunks_exact(2) {
            high ^= mixed(low ^ keys[0]) & self.high_mask;
            low ^= mixed(high ^ keys[1]) & self.low_mask;
        }
        high << self.low_bits | low
    }
}

/// 2^64 divided by the golden ratio: the step of SplitMix64.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the output of SplitMix64: each bit of `z` changes half of the bits of the result, on average.
#[inline]
pub(crate) fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
