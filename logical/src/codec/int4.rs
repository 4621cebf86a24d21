//! Four bits for each number: whole numbers from −7 to 7, relative to the largest of a block.
//!
//! ```text
//! s    = max |x| / 7 of the block
//! code = x / s, rounded to the nearest, ties to even;  x̂ = s · code
//!
//! block   = s: f32, number₁ … number_B: 4 bits each, 8 + code, the lower half of a byte first
//! message = block₁ … block_b
//! ```
//!
//! Little endian, and filled up to a whole byte: d/2 + 4⌈d/B⌉ bytes, 1/7.5 of f32 for blocks of 128.
//!
//! The error of a number is at most a 14th of its block's largest, and at most the number itself, so that ‖x̂ − x‖² ≤
//! (B−1)/(B+195) ‖x‖². Small blocks cost headers, large ones small numbers. [`E3M0`](super::E3M0) keeps small numbers
//! at the cost of large ones.
//!
//! Source: Wang et al., "ZeRO++", 2023, which sends gradients so.

use super::blocks::Blocks;
#[cfg(feature = "cuda")]
use super::blocks::cuda;
use super::named::not_finite_field;
use super::scaled::{Scaled, decode};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::scaled::{add_int4, pack_int4, unpack_int4};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use std::sync::Arc;

/// Number of elements of a block, unless another is chosen.
const BLOCK: usize = 128;
/// Largest code.
const LARGEST: f32 = 7.0;

/// Codec of four bits for each number, in equal steps up to the largest of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int4 {
    blocks: Blocks,
    not_finite: NotFinite,
}

impl Default for Int4 {
    /// Returns the codec in blocks of 128.
    fn default() -> Self {
        Self::in_blocks(BLOCK)
    }
}

impl Int4 {
    /// Creates a codec with one scale for every `size` numbers, at least 1.
    pub fn in_blocks(size: usize) -> Self {
        Int4 { blocks: Blocks { size: Some(size), header: 4, bits: 4 }, not_finite: NotFinite::Refuse }
    }

    /// Sets the treatment of NaN and infinity. Where they propagate, all numbers of their block become NaN.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        Int4 { not_finite, ..self }
    }
}

/// Returns the size of a step in a block of this largest magnitude, above 0 unless all numbers are 0.
fn scale(largest: f32) -> f32 {
    if largest > 0.0 { (largest / LARGEST).max(f32::from_bits(1)) } else { 0.0 }
}

impl Spelled for Int4 {
    fn word(&self) -> &'static str {
        "int4"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.blocks.field(options, "elements that share a scale")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for Int4 {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn properties(&self) -> Properties {
        let delta = |size: usize| 196.0 / (size as f64 + 195.0);
        let contraction = self.blocks.size.map(delta);
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
        let Int4 { blocks, not_finite } = *self;
        Scaled { blocks, not_finite, scale, pack: pack_int4 }.encode(from, to)
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        decode(self.blocks, from, to, |codes, scale, x| add_int4(codes, scale, weight, x))
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        decode(self.blocks, from, to, unpack_int4)
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(cuda::INT4.encode(self.blocks.size, len, self.not_finite))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(cuda::INT4.decode(self.blocks.size, len, weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roundtrip(codec: Int4, x: &[f32]) -> Vec<f32> {
        let mut message = vec![0; codec.encoded_len(x.len())];
        codec.encode(x, &mut message, 0).unwrap();
        let mut decoded = vec![f32::NAN; x.len()];
        codec.decode(&message, &mut decoded).unwrap();
        decoded
    }

    #[test]
    fn numbers_go_to_the_nearest_step_of_their_block() {
        let x = [14.0, -14.0, 1.0, 3.0, -4.9, -5.1, 0.0, 0.7, 0.1];
        let codec = Int4::in_blocks(7);
        assert_eq!(codec.encoded_len(9), (4 + 4) + (4 + 1));
        let decoded = roundtrip(codec, &x);
        assert_eq!(decoded[..7], [14.0, -14.0, 0.0, 4.0, -4.0, -6.0, 0.0]);
        assert!((decoded[7] - 0.7).abs() < 1e-6 && (decoded[8] - 0.1).abs() < 1e-6);
    }

    #[test]
    fn tiny_and_huge_blocks_stay_finite() {
        for largest in [f32::from_bits(1), 1e-40, 1.0, f32::MAX] {
            let decoded = roundtrip(Int4::default(), &[largest, -largest]);
            assert!(decoded[0].is_finite() && decoded[0] == -decoded[1], "{largest:e}: {decoded:?}");
            let error = (f64::from(decoded[0]) - f64::from(largest)).abs();
            assert!(error <= f64::from(largest) * 1e-3 + 1e-44, "{largest:e}: {decoded:?}");
        }
    }
}
