//! Random-k: k elements at places that depend on the seed alone; the rest counts as 0 (Wangni et al. 2018; Stich et
//! al. 2018).
//!
//! ```text
//! C(x)_i = x_i if i ∈ K(seed), else 0,   P(i ∈ K) = k/d       E‖C(x) − x‖² = (1 − k/d) ‖x‖²
//! unbiased: (d/k) C(x)                                        E‖(d/k) C(x) − x‖² = (d/k − 1) ‖x‖²
//!
//! K = (o + ⌊j d/k⌋ + u_j) mod d for j in 0..k,   o uniform in 0..d, u_j uniform in stratum j, ⌊j d/k⌋ .. ⌊(j+1) d/k⌋
//!
//! message = seed as u64, k values as f32 in the order of j; little endian
//! ```
//!
//! Strata make the places distinct without a search, nearly sorted, and spread out. The strata begin at a random
//! place, so that all elements are equally likely. With equal seeds C is linear: as a [`LinearCodec`] the message is
//! the k values, and all ranks know the seed.

#[cfg(feature = "cuda")]
mod cuda;

use super::shared::fields::{KeepValues, not_finite_field};
use super::shared::not_finite::{refuse, saturated};
use super::{Codec, CodecError, Keep, LinearCodec, Noise, NotFinite, Properties, Round};
use crate::encoding::mix;
use crate::options_text::{NamedOptions, Options, truth};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::{Float, all_finite};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use std::sync::Arc;

/// Size of the seed in a message, in bytes.
const SEED: usize = 8;

/// Codec that keeps elements at random places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomK {
    keep: Keep,
    scaled: bool,
    not_finite: NotFinite,
}

impl RandomK {
    /// Creates the contraction: kept elements are unscaled. It refuses NaN and infinity.
    ///
    /// # Errors
    /// [`hexagram_physical::Error::Usage`] if no elements are kept, as in `random-k(0%)`.
    pub fn new(keep: Keep) -> Result<Self> {
        RandomK { keep, ..Self::default() }.checked()
    }

    /// Creates the unbiased codec: kept elements are multiplied by d/k.
    ///
    /// # Errors
    /// As [`RandomK::new`].
    pub fn unbiased(keep: Keep) -> Result<Self> {
        Ok(RandomK { scaled: true, ..RandomK::new(keep)? })
    }

    /// Sets the treatment of NaN and infinity, anywhere in the input: if they propagate, all kept elements become
    /// NaN.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        RandomK { not_finite, ..self }
    }

    /// Returns the factor of kept elements, k of `len`.
    fn scale(&self, len: usize, k: usize) -> f32 {
        if self.scaled { len as f32 / k as f32 } else { 1.0 }
    }

    /// Calls `put` with the kept elements of `from`, in the order of places.
    fn pick(&self, from: &[f32], seed: u64, mut put: impl FnMut(usize, f32)) -> Result<(), CodecError> {
        let finite = all_finite(from);
        if !finite && self.not_finite == NotFinite::Refuse {
            return Err(refuse(from, 0, f32::is_finite));
        }
        let k = self.keep.of(from.len());
        let scale = self.scale(from.len(), k);
        for (number, place) in SeededIndices::new(seed, k, from.len()).enumerate() {
            put(
                number,
                match self.not_finite {
                    _ if finite => from[place] * scale,
                    NotFinite::Saturate => saturated(saturated(from[place], f32::MAX) * scale, f32::MAX),
                    _ => f32::NAN,
                },
            );
        }
        Ok(())
    }
}

impl Default for RandomK {
    /// Returns the codec that keeps 1 % of the elements.
    fn default() -> Self {
        RandomK { keep: Keep::Ratio(0.01), scaled: false, not_finite: NotFinite::default() }
    }
}

impl NamedOptions for RandomK {
    fn keyword(&self) -> &'static str {
        "random-k"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.positional("keep", &mut self.keep, KeepValues, "elements that are kept")?;
        options.field(
            "unbiased",
            &mut self.scaled,
            truth(),
            "true to scale the kept elements, without bias",
        )?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for RandomK {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn properties(&self) -> Properties {
        let contraction = if self.scaled { None } else { self.keep.contraction(None) };
        Properties { unbiased: self.scaled, contraction, linear: true, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        SEED + 4 * self.keep.of(len)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn is_sparse(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
        let (head, values) = to.split_at_mut(SEED);
        head.copy_from_slice(&seed.to_le_bytes());
        let (values, _) = values.as_chunks_mut();
        self.pick(from, seed, |number, value| values[number] = value.to_le_bytes())?;
        Ok(Codec::encoded_len(self, from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let want = Codec::encoded_len(self, to.len());
        let (Some((seed, values)), true) = (from.split_first_chunk(), from.len() == want) else {
            return Err(CodecError::damaged(format!("{} bytes, not {want}", from.len())));
        };
        let (values, _) = values.as_chunks();
        let places = SeededIndices::new(u64::from_le_bytes(*seed), values.len(), to.len());
        for (place, value) in places.zip(values) {
            to[place] = (to[place] + weight * f32::from_le_bytes(*value)).canonical();
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        self.encoding(len, seed)
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        self.decoding(len, weight)
    }
}

impl LinearCodec for RandomK {
    fn name(&self) -> String {
        Codec::name(self)
    }

    fn message_len(&self, _: usize, len: usize) -> usize {
        self.keep.of(len)
    }

    fn encode(&self, round: Round<'_>, _: &mut [f32], to: &mut [f32]) -> Result<(), CodecError> {
        if to.len() != self.keep.of(round.from.len()) {
            return Err(CodecError::damaged(format!("{} elements of message", to.len())));
        }
        self.pick(round.from, round.seed, |number, value| to[number] = value)
    }

    fn decode(&self, reduced: &[f32], _: &mut [f32], to: &mut [f32], seed: u64) -> Result<(), CodecError> {
        if reduced.len() != self.keep.of(to.len()) {
            return Err(CodecError::damaged(format!("{} elements of message", reduced.len())));
        }
        to.fill(0.0);
        let places = SeededIndices::new(seed, reduced.len(), to.len());
        places.zip(reduced).for_each(|(place, value)| to[place] = *value);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, seed: u64) -> Option<Program> {
        self.encoding_values(len, seed)
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, seed: u64) -> Option<Program> {
        self.decoding_values(len, seed)
    }
}

/// Places that a seed determines: k different ones of d.
struct SeededIndices {
    state: u64,
    len: usize,
    offset: usize,
    /// First place of the next stratum.
    start: usize,
    /// Sum of the remainders of a place that strata have left so far, in 1/k.
    remainder: usize,
    /// Number of remaining places.
    left: usize,
    k: usize,
    /// Width of a stratum, ⌊d/k⌋.
    width: usize,
    /// Number of excess places, d mod k.
    excess: usize,
}

impl SeededIndices {
    fn new(seed: u64, k: usize, len: usize) -> Self {
        let state = mix(seed);
        let width = len / k.max(1);
        let excess = len % k.max(1);
        SeededIndices {
            state,
            len,
            offset: below(state, len),
            start: 0,
            remainder: 0,
            left: k,
            k,
            width,
            excess,
        }
    }
}

impl Iterator for SeededIndices {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        self.remainder += self.excess;
        let carry = self.remainder >= self.k;
        self.remainder -= if carry { self.k } else { 0 };
        let width = self.width + usize::from(carry);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let place = self.start + below(mix(self.state), width);
        self.start += width;
        // Neither is `len` or more, so that the sum overflows only for lengths that no memory can hold.
        let place = place + self.offset;
        Some(if place < self.len { place } else { place - self.len })
    }
}

/// Returns a number below `limit`, proportional to a random word, or 0 if `limit` is 0.
fn below(word: u64, limit: usize) -> usize {
    ((u128::from(word) * limit as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_differ_and_fill_all() {
        for len in 1..60 {
            for k in 1..=len {
                let mut places: Vec<usize> = SeededIndices::new(3, k, len).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), k, "{k} of {len}");
                assert!(places[k - 1] < len);
            }
        }
    }

    #[test]
    fn every_place_is_as_likely_as_every_other() {
        let k = 4;
        let len = 5;
        let draws = 100_000;
        let mut counts = vec![0; len];
        (0..draws).for_each(|seed| SeededIndices::new(seed, k, len).for_each(|place| counts[place] += 1));
        for count in counts {
            let deviation = f64::from(count) - draws as f64 * 0.8;
            assert!(deviation.abs() < 5.0 * (draws as f64 * 0.8 * 0.2).sqrt(), "{deviation}");
        }
    }

    #[test]
    fn places_beyond_32_bits_stay_in_range() {
        let len = (1usize << 40) + 17;
        let places: Vec<usize> = SeededIndices::new(1, 1000, len).collect();
        assert!(places.iter().all(|place| *place < len));
        assert!(places.iter().any(|place| *place > 1 << 39));
    }
}
