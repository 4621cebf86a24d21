//! Four bits per number: whole numbers from −7 to 7, relative to the largest of a block.
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
//! The error of a number is at most a 14th of the largest of its block, and at most the number itself, so that ‖x̂ −
//! x‖² ≤ (B−1)/(B+195) ‖x‖². Small blocks cost more headers; large ones lose small numbers. [`E3M0`](super::E3M0)
//! preserves small numbers at the cost of large ones.
//!
//! Source: Wang et al., "ZeRO++", 2023, which sends gradients in this format.

use super::NotFinite;
#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::{BlockCodec, Format, read_scale};
use super::shared::scaled::Scaled;
use super::shared::scaled::simd::{add_int4, pack_int4, unpack_int4};

/// Largest code.
const LARGEST: f32 = 7.0;

/// Codec of four bits per number, in equal steps up to the largest of its block. NaN and infinity propagate to their
/// whole block, as NaN.
pub type Int4 = BlockCodec<Int4Format>;

#[cfg(feature = "cuda")]
static KERNELS: cuda::Kernels = cuda::kernels!("int4", INT4);

/// Format of [`Int4`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int4Format {}

impl Format for Int4Format {
    const NAME: &'static str = "int4";
    const HEADER: usize = 4;
    const BITS: usize = 4;
    const BLOCK: usize = 128;
    #[cfg(feature = "cuda")]
    const KERNELS: Option<&'static cuda::Kernels> = Some(&KERNELS);

    fn contraction(size: usize) -> f64 {
        196.0 / (size as f64 + 195.0)
    }

    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()> {
        Scaled { scale, pack: pack_int4 }.encode(not_finite, x, header, codes)
    }

    fn decode_add(header: &[u8], codes: &[u8], weight: f32, x: &mut [f32]) {
        add_int4(codes, read_scale(header), weight, x);
    }

    fn decode(header: &[u8], codes: &[u8], x: &mut [f32]) {
        unpack_int4(codes, read_scale(header), x);
    }
}

/// Returns the step size in a block of this largest magnitude, above 0 unless all numbers are 0.
fn scale(largest: f32) -> f32 {
    if largest > 0.0 { (largest / LARGEST).max(f32::from_bits(1)) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::Codec;
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
