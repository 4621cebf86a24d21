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

use super::blocks::{Blocks, each_half, pack_halves, read_scale};
use super::named::not_finite_field;
use super::not_finite::{refuse, saturated};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::{Float, all_finite};
use std::sync::Arc;

/// Number of elements of a block, unless another is chosen.
const BLOCK: usize = 128;
/// Largest code.
const LARGEST: f32 = 7.0;
/// Number that is added to a code, which makes it a positive one of four bits.
const OFFSET: f32 = 8.0;

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

    /// Returns the number as it is encoded.
    fn clean(self, x: f32) -> f32 {
        if self.not_finite == NotFinite::Saturate { saturated(x, f32::MAX) } else { x }
    }

    /// Returns the size of a step in a block, above 0 unless all numbers are 0; NaN if one of them is not finite.
    fn scale(self, x: &[f32]) -> f32 {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(self.clean(*x).abs()));
        match () {
            () if self.not_finite != NotFinite::Saturate && !all_finite(x) => f32::NAN,
            () if largest > 0.0 => (largest / LARGEST).max(f32::from_bits(1)),
            () => 0.0,
        }
    }
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
        if self.not_finite == NotFinite::Refuse && !all_finite(from) {
            return Err(refuse(from, 0, f32::is_finite));
        }
        for (x, header, codes) in self.blocks.encode(from, to) {
            let scale = self.scale(x);
            header.copy_from_slice(&scale.to_le_bytes());
            pack_halves(x, codes, |x| code(self.clean(x), scale));
        }
        Ok(self.encoded_len(from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        for (header, codes, x) in self.blocks.decode(from, to)? {
            let scale = read_scale(header);
            each_half(codes, x, |x, code| *x = (*x + weight * number(code, scale)).canonical());
        }
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        for (header, codes, x) in self.blocks.decode(from, to)? {
            let scale = read_scale(header);
            each_half(codes, x, |x, code| *x = number(code, scale).canonical());
        }
        Ok(())
    }
}

/// Returns the four bits of a number.
fn code(x: f32, scale: f32) -> u8 {
    let steps = if scale > 0.0 { (x / scale).round_ties_even().clamp(-LARGEST, LARGEST) } else { 0.0 };
    (steps + OFFSET) as u8
}

/// Returns the number of a code.
fn number(code: u8, scale: f32) -> f32 {
    scale * (f32::from(code) - OFFSET)
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
