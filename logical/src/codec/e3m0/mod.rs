//! Four bits per number: a floating-point number of sign and exponent only (E3M0), relative to the largest magnitude
//! of its block.
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
//! The error of a number of at least s/64 is at most a third of it, and that of a smaller one at most s/128; the
//! largest is exact. So ‖x̂ − x‖² ≤ ‖x‖²/9 in blocks of 2049 or fewer. It is .038 ‖x‖² for Gaussian numbers, compared
//! with at least 1.8 ‖x‖² for 4 bits of QSGD. Biased, by some percent: use feedback in long trainings.
//!
//! Source: Douillard et al., "Streaming DiLoCo", 2025, which sends changes of parameters in this format. The paper
//! does not specify the scale of blocks, which is our choice; without a scale, exponents from 2⁻³ to 2³ would not
//! cover small changes.

use super::NotFinite;
#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::{BlockCodec, Format, read_scale};
use super::shared::scaled::Scaled;
use super::shared::scaled::simd::{add_e3m0, pack_e3m0, unpack_e3m0};

/// Codec of four bits per number: its sign and the nearest power of two. NaN and infinity propagate to their whole
/// block, as NaN.
pub type E3M0 = BlockCodec<E3m0Format>;

#[cfg(feature = "cuda")]
static KERNELS: cuda::Kernels = cuda::kernels!("e3m0", E3M0);

/// Format of [`E3M0`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum E3m0Format {}

impl Format for E3m0Format {
    const NAME: &'static str = "e3m0";
    const HEADER: usize = 4;
    const BITS: usize = 4;
    const BLOCK: usize = 512;
    #[cfg(feature = "cuda")]
    const KERNELS: Option<&'static cuda::Kernels> = Some(&KERNELS);

    /// Returns the contraction from the errors of numbers above s/64, of those below, and of the largest, which is
    /// exact: δ = 1 − max(1/9, (B − 1) / (B − 1 + 2¹⁴)).
    fn contraction(size: usize) -> f64 {
        let small = size.saturating_sub(1) as f64 / (size.saturating_sub(1) as f64 + 16384.0);
        1.0 - small.max(1.0 / 9.0)
    }

    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()> {
        Scaled { scale: |largest| largest, pack: pack_e3m0 }.encode(not_finite, x, header, codes)
    }

    fn decode_add(header: &[u8], codes: &[u8], weight: f32, x: &mut [f32]) {
        add_e3m0(codes, read_scale(header), weight, x);
    }

    fn decode(header: &[u8], codes: &[u8], x: &mut [f32]) {
        unpack_e3m0(codes, read_scale(header), x);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Codec;
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
