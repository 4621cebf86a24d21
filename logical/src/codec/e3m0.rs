//! Four bits for each number, a floating-point number of sign and exponent only (E3M0), relative to the largest of its
//! block.
//!
//! ```text
//! s = max |x| of the block
//! x̂ = s sgn(x) 2^(code − 7)   code in 1..=7, the nearest, ties away from 0;   x̂ = 0 for code 0, where |x| < s/128
//!
//! block   = s: f32, number₁ … number_B: 4 bits each, 8 · (1 if negative) + code, the lower half of a byte first
//! message = block₁ … block_b
//! ```
//!
//! Little endian, and filled up to a whole byte: d/2 + 4⌈d/B⌉ bytes, 1/7.88 of f32 for blocks of 512.
//!
//! A number of at least s/64 is off by a third of itself at most, and a smaller one by s/128 at most; the largest is
//! exact. So ‖x̂ − x‖² ≤ ‖x‖²/9 in blocks of 2049 or fewer; it is .038 ‖x‖² for Gaussian numbers, where 4 bits of QSGD
//! have 1.8 ‖x‖² and more. Biased, by some percent: use feedback where rounds are many.
//!
//! Source: Douillard et al., "Streaming DiLoCo", 2025, which sends changes of parameters in it. The scale of blocks is
//! a choice of ours: the paper says of none, and without one exponents from 2⁻³ to 2³ would not reach small changes.

use super::blocks::Blocks;
#[cfg(feature = "cuda")]
use super::blocks::cuda;
use super::named::not_finite_field;
use super::scaled::{Scaled, decode};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::scaled::{add_e3m0, pack_e3m0, unpack_e3m0};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use std::sync::Arc;

/// Number of elements of a block, unless another is chosen.
const BLOCK: usize = 512;

/// Codec of four bits for each number, its sign and the power of two next to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E3M0 {
    blocks: Blocks,
    not_finite: NotFinite,
}

impl Default for E3M0 {
    /// Returns the codec in blocks of 512.
    fn default() -> Self {
        Self::in_blocks(BLOCK)
    }
}

impl E3M0 {
    /// Creates a codec with one scale for every `size` numbers, at least 1.
    pub fn in_blocks(size: usize) -> Self {
        E3M0 { blocks: Blocks { size: Some(size), header: 4, bits: 4 }, not_finite: NotFinite::Refuse }
    }

    /// Sets the treatment of NaN and infinity. Where they propagate, all numbers of their block become NaN.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        E3M0 { not_finite, ..self }
    }
}

impl Spelled for E3M0 {
    fn word(&self) -> &'static str {
        "e3m0"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.blocks.field(options, "elements that share a scale")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for E3M0 {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    /// Returns what follows from the errors of the numbers above s/64, those below, and the largest, which has none:
    /// δ = 1 − max(1/9, (B − 1) / (B − 1 + 2¹⁴)).
    fn properties(&self) -> Properties {
        let small = |size: usize| size.saturating_sub(1) as f64 / (size.saturating_sub(1) as f64 + 16384.0);
        let contraction = self.blocks.size.map(|size| 1.0 - small(size).max(1.0 / 9.0));
        Properties { unbiased: false, contraction, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        self.blocks.encoded_len(len)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let E3M0 { blocks, not_finite } = *self;
        Scaled { blocks, not_finite, scale: |largest| largest, pack: pack_e3m0 }.encode(from, to)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        decode(self.blocks, from, to, |codes, scale, x| add_e3m0(codes, scale, weight, x))
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        decode(self.blocks, from, to, unpack_e3m0)
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(cuda::E3M0.encode(self.blocks.size, len, self.not_finite))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(cuda::E3M0.decode(self.blocks.size, len, weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nan_is_the_same() {
        let codec = E3M0::default().with_not_finite(NotFinite::Propagate);
        let mut message = [0; 5];
        codec.encode(&[f32::NAN, -1.0], &mut message, 0).unwrap();
        // A scale that no encoder writes: NaN with a sign and a payload.
        message[..4].copy_from_slice(&(-f32::from_bits(0x7fc0_0001)).to_le_bytes());
        let mut decoded = [1.0; 2];
        codec.decode(&message, &mut decoded).unwrap();
        let mut added = [1.0; 2];
        codec.decode_add(&message, -1.0, &mut added).unwrap();
        let bits = decoded.iter().chain(&added).map(|x| x.to_bits());
        assert!(bits.clone().all(|bits| bits == f32::NAN.to_bits()), "{decoded:?} {added:?}");
    }
}
