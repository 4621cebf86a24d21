//! PyTorch's random numbers on the CPU: the Mersenne Twister MT19937. Open this file when an order differs
//! from PyTorch's and you want to know which number was drawn.
//!
//! Source: Matsumoto and Nishimura, "Mersenne Twister" (ACM TOMACS 8, 1998), with the initialisation of 2002,
//! as in PyTorch's `aten/src/ATen/core/MT19937RNGEngine.h`.

/// Words of state.
const WORDS: usize = 624;
/// How far ahead the word lies that is mixed in.
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
    /// As in PyTorch only the low 32 bits count: seeds that differ by a multiple of 2^32 give the same
    /// numbers.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; WORDS];
        state[0] = seed as u32;
        for i in 1..WORDS {
            let previous = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Mersenne { state, next: WORDS }
    }

    /// The next 32 random bits: PyTorch's `random()`.
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

    /// The next 64 random bits, high word first: PyTorch's `random64()`.
    pub fn next_u64(&mut self) -> u64 {
        let high = self.next_u32();
        let low = self.next_u32();
        u64::from(high) << 32 | u64::from(low)
    }

    /// Replaces all words at once, each from itself, its neighbour and the word `SHIFT` ahead.
    fn twist(&mut self) {
        for i in 0..WORDS {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % WORDS] & 0x7fff_ffff);
            let magic = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + SHIFT) % WORDS] ^ (joined >> 1) ^ magic;
        }
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
        let (mut wide, mut narrow) = (Mersenne::new(1), Mersenne::new(1));
        let (high, low) = (narrow.next_u32(), narrow.next_u32());
        assert_eq!(wide.next_u64(), u64::from(high) << 32 | u64::from(low));
    }
}
