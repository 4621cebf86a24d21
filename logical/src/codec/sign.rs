//! One bit for each number, its sign, and one scale for a block: the mean of the absolute values.
//!
//! `x̂ = (‖x‖₁ / B) sign(x)`, with `sign(±0) = +1` (scaled sign; Karimireddy et al. 2019)
//!
//! `block = ‖x‖₁ / B: f32, sign₁ … sign_B: 1 bit each, 1 if negative, the lowest of a byte first`, little endian and
//! filled up to a whole byte; `message = block₁ … block_b`: ⌈B/8⌉ + 4 bytes for each block, 1/31.5 of f32 for blocks
//! of 2048.
//!
//! The error of a block is ‖x̂ − x‖² = (1 − ‖x‖₁² / (B‖x‖₂²)) ‖x‖₂²: .363 ‖x‖² for Gaussian numbers, and at worst (one
//! number, all others 0) 1 − 1/B. Blocks thus bound it whatever the length of the run. Biased: use feedback.

#[cfg(feature = "cuda")]
use super::blocks::cuda;
use super::blocks::{Blocks, read_scale};
use super::named::not_finite_field;
use super::not_finite::{PIECE, refuse, saturated};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels;
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::Program;
use std::sync::Arc;

/// Codec of one bit for each number, its sign, and of the mean absolute value of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sign {
    blocks: Blocks,
    not_finite: NotFinite,
}

impl Default for Sign {
    /// Returns the codec in blocks of 2048.
    fn default() -> Self {
        Self::in_blocks(PIECE)
    }
}

impl Sign {
    /// Creates a codec with one scale for every `size` numbers, at least 1.
    pub fn in_blocks(size: usize) -> Self {
        Sign { blocks: Blocks { size: Some(size), header: 4, bits: 1 }, not_finite: NotFinite::Refuse }
    }

    /// Creates a codec with one scale for all numbers of a run.
    pub fn whole() -> Self {
        Sign { blocks: Blocks { size: None, header: 4, bits: 1 }, not_finite: NotFinite::Refuse }
    }

    /// Sets the treatment of NaN and infinity. Where they propagate, all numbers of their block become NaN or
    /// infinite.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        Sign { not_finite, ..self }
    }

    /// Packs the signs of a block, and returns ‖x‖₁, or `None` to refuse x. Pieces are summed each by itself, and their
    /// sums in 64 lanes, of which lane i takes pieces i, i + 64, …, and which are added by halves.
    fn pack(&self, x: &[f32], signs: &mut [u8]) -> Option<f64> {
        if x.len() <= PIECE {
            return self.pack_piece(x, signs);
        }
        let mut lanes = [0.0; kernels::WIDE];
        for (number, (x, signs)) in x.chunks(PIECE).zip(signs.chunks_mut(PIECE / 8)).enumerate() {
            lanes[number % kernels::WIDE] += self.pack_piece(x, signs)?;
        }
        Some(kernels::fold(lanes, |x, y| x + y))
    }

    fn pack_piece(&self, x: &[f32], signs: &mut [u8]) -> Option<f64> {
        let norm = kernels::pack_signs(x, signs);
        if norm.is_finite() { Some(norm) } else { self.careful_norm(x) }
    }

    /// Returns ‖x‖₁ of a piece whose sum in f32 has overflowed or is not finite: of what the policy makes of x, or
    /// `None` to refuse it.
    fn careful_norm(&self, x: &[f32]) -> Option<f64> {
        let norm = |of: fn(f32) -> f32| x.iter().map(|x| f64::from(of(*x).abs())).sum::<f64>();
        match self.not_finite {
            NotFinite::Refuse => Some(norm(|x| x)).filter(|norm| norm.is_finite()),
            NotFinite::Propagate => Some(norm(|x| x)),
            NotFinite::Saturate => Some(norm(|x| saturated(x, f32::MAX))),
        }
    }
}

impl Spelled for Sign {
    fn word(&self) -> &'static str {
        "sign"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.blocks.field(options, "elements that share a scale")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for Sign {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn properties(&self) -> Properties {
        let contraction = self.blocks.size.map(|size| 1.0 / size as f64);
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
        for (x, header, signs) in self.blocks.encode(from, to) {
            let norm = self.pack(x, signs).ok_or_else(|| refuse(from, 0, f32::is_finite))?;
            let scale = (norm / x.len() as f64) as f32;
            // The bits of a NaN depend on the machine.
            let scale = if scale.is_nan() { f32::NAN } else { scale };
            header.copy_from_slice(&scale.to_le_bytes());
        }
        Ok(self.encoded_len(from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        for (header, signs, x) in self.blocks.decode(from, to)? {
            kernels::add_signs(signs, weight * read_scale(header), x);
        }
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        for (header, signs, x) in self.blocks.decode(from, to)? {
            kernels::unpack_signs(signs, read_scale(header), x);
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(cuda::SIGN.encode(self.blocks.size, len, self.not_finite))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(cuda::SIGN.decode(self.blocks.size, len, weight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_added_in_lanes() {
        // Beside 2²⁴ + 1 half of the last place of f64 is lost, but two of them are not, if they are added first.
        let mut x = vec![0.0f32; 4 * PIECE];
        x[0] = 16_777_216.0;
        x[1] = 1.0;
        let half = f32::from_bits((127 - 29) << 23);
        x[PIECE] = half;
        x[3 * PIECE] = half;
        let mut message = vec![0; Sign::whole().encoded_len(x.len())];
        Sign::whole().encode(&x, &mut message, 0).unwrap();
        assert_eq!(read_scale(&message[..4]), 16_777_218.0 / 8192.0);
        x.swap(2 * PIECE, 3 * PIECE);
        Sign::whole().encode(&x, &mut message, 0).unwrap();
        assert_eq!(read_scale(&message[..4]), 16_777_216.0 / 8192.0);
    }
}
