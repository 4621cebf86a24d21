//! PyTorch's random number generator on the CPU: the Mersenne Twister MT19937.
//!
//! Source: Matsumoto and Nishimura, "Mersenne Twister" (ACM TOMACS 8, 1998), with the initialisation of 2002,
//! as in PyTorch's `aten/src/ATen/core/MT19937RNGEngine.h`.

/// Words of state.
const WORDS: usize = 624;
/// Distance to the word that is combined.
const SHIFT: usize = 397;

/// The generator behind `torch.Generator(device="cpu")`.
///
/// Deterministic: the same seed gives the same numbers on every machine. Not for secrets.
///
/// ```
/// // torch.Generator().manual_seed(5489), and C++'s std::mt19937 by default
/// assert_eq!(hexagram_sampler::Mersenne::new(5489).next_u32(), 3499211612);
/// ```
#[derive(Debug, Clone)]
pub struct Mersenne {
    state: [u32; WORDS],
    next: usize,
}

impl Mersenne {
    /// Starts the generator as `manual_seed(seed)` does.
    ///
    /// As in PyTorch, only the low 32 bits of the seed are used: seeds that differ by a multiple of 2^32 give the
    /// same numbers.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; WORDS];
        state[0] = seed as u32;
        for i in 1..WORDS {
            let previous = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Mersenne { state, next: WORDS }
    }

    /// Returns the next 32 random bits: PyTorch's `random()`.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        if self.next == WORDS {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Returns the next 64 random bits, high word first: PyTorch's `random64()`.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let high = self.next_u32();
        let low = self.next_u32();
        u64::from(high) << 32 | u64::from(low)
    }

    /// Returns a number below `range`, like one entry of `torch.randint(range, …)`.
    ///
    /// The result is the remainder of 32 random bits, or of 64 if `range` is [`WIDE`](Self::WIDE) or more.
    ///
    /// # Panics
    ///
    /// If `range` is 0.
    #[inline]
    pub fn below(&mut self, range: u64) -> u64 {
        if range < Self::WIDE { u64::from(self.next_u32() % range as u32) } else { self.next_u64() % range }
    }

    /// The smallest range for which [`below`](Self::below) draws 64 bits, to keep the remainder uniform, as torch
    /// 2.15 does. Earlier versions of PyTorch drew 64 bits from 2^32 on.
    pub const WIDE: u64 = 1 << 28;

    /// Returns a number from 0 (included) to 1 (excluded), like one entry of `torch.rand(…, dtype=torch.float64)`.
    #[inline]
    pub fn uniform(&mut self) -> f64 {
        const BITS: u32 = f64::MANTISSA_DIGITS;
        (self.next_u64() & ((1 << BITS) - 1)) as f64 / (1u64 << BITS) as f64
    }

    /// Replaces all words, each from itself, its neighbour and the word `SHIFT` ahead.
    #[inline(never)]
    fn twist(&mut self) {
        const BEHIND: usize = WORDS - SHIFT;
        let state = &mut self.state;
        let mixed = |word: u32, neighbour: u32| {
            let joined = (word & 0x8000_0000) | (neighbour & 0x7fff_ffff);
            (joined >> 1) ^ ((joined & 1).wrapping_neg() & 0x9908_b0df)
        };
        // In three pieces, so that no index wraps within one.
        for i in 0..BEHIND {
            state[i] = state[i + SHIFT] ^ mixed(state[i], state[i + 1]);
        }
        for i in BEHIND..WORDS - 1 {
            state[i] = state[i - BEHIND] ^ mixed(state[i], state[i + 1]);
        }
        state[WORDS - 1] = state[SHIFT - 1] ^ mixed(state[WORDS - 1], state[0]);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_thousandth_number_is_the_one_the_cpp_standard_names() {
        let mut generator = Mersenne::new(5489);
        assert_eq!((0..10_000).map(|_| generator.next_u32()).last(), Some(4_123_659_995));
    }

    #[test]
    fn only_the_low_half_of_the_seed_counts() {
        assert_eq!(Mersenne::new(7).next_u32(), Mersenne::new(7 + (9 << 32)).next_u32());
        assert_ne!(Mersenne::new(7).next_u32(), Mersenne::new(8).next_u32());
    }

    #[test]
    fn sixty_four_bits_are_two_draws_high_word_first() {
        let mut wide = Mersenne::new(1);
        let mut narrow = Mersenne::new(1);
        let high = narrow.next_u32();
        let low = narrow.next_u32();
        assert_eq!(wide.next_u64(), u64::from(high) << 32 | u64::from(low));
    }
}
