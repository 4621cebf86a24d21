//! Eight-bit floats E4M3, scaled per block: a sign, four bits of exponent, three of fraction.
//!
//! ```text
//! scale = max |x| / 448
//! code  = x / scale, rounded to the nearest number of E4M3, ties to even;  x̂ = scale · code
//! block = scale: f32, code₁ … code_B: u8, little endian;  message = block₁ … block_b: d + 4⌈d/B⌉ bytes
//! ```
//!
//! The format has no infinity, numbers up to ±448, 2⁻⁶ as its smallest normal number, and steps of 2⁻⁹ below
//! (Micikevicius et al., "FP8 formats for deep learning", 2022). So the error of a number is at most 1/16 of it, and,
//! below 1/28672 of the largest of its block, at most 2⁻¹⁰ · scale. The error of 8 bits by minimum and maximum is
//! proportional to the range; this codec preserves small numbers next to large ones.

use super::NotFinite;
#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::{BlockCodec, Format, read_scale};
use super::shared::not_finite::{PIECE, saturated_pieces};
use super::shared::scaled::simd::{add_e4m3, largest, pack_e4m3, unpack_e4m3};

/// Largest number of the format.
const LARGEST: f32 = 448.0;

/// Codec of 8-bit floats with four bits of exponent. NaN and infinity both propagate as NaN; other numbers of their
/// block are unaffected.
pub type E4M3 = BlockCodec<E4m3Format>;

#[cfg(feature = "cuda")]
static KERNELS: cuda::Kernels = cuda::kernels!("e4m3", E4M3);

/// Format of [`E4M3`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum E4m3Format {}

impl Format for E4m3Format {
    const NAME: &'static str = "e4m3";
    const HEADER: usize = 4;
    const BITS: usize = 8;
    const BLOCK: usize = PIECE;
    #[cfg(feature = "cuda")]
    const KERNELS: Option<&'static cuda::Kernels> = Some(&KERNELS);

    /// Returns the contraction from errors of at most |x|/16, or 2⁻¹⁰/448 of the largest number of the block.
    fn contraction(size: usize) -> f64 {
        let step = 1.0 / (1024.0 * f64::from(LARGEST));
        1.0 - 1.01 / 256.0 - 1.01 * size as f64 * step * step
    }

    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()> {
        let Some(most) = largest(x) else { return encode_odd(not_finite, x, header, codes) };
        let scale = scale(most);
        header.copy_from_slice(&scale.to_le_bytes());
        pack_e4m3(x, scale, codes);
        Some(())
    }

    fn decode_add(header: &[u8], codes: &[u8], weight: f32, x: &mut [f32]) {
        add_e4m3(codes, read_scale(header), weight, x);
    }

    fn decode(header: &[u8], codes: &[u8], x: &mut [f32]) {
        unpack_e4m3(codes, read_scale(header), x);
    }
}

/// Encodes a block with numbers that are not finite; `None` if they are refused.
fn encode_odd(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()> {
    let finite = |x: &f32| Some(x.abs()).filter(|x| x.is_finite());
    let most = x.iter().filter_map(finite).fold(0.0, f32::max);
    let scale = match not_finite {
        NotFinite::Refuse => return None,
        NotFinite::Saturate if x.iter().any(|x| x.is_infinite()) => scale(f32::MAX),
        _ => scale(most),
    };
    header.copy_from_slice(&scale.to_le_bytes());
    match not_finite {
        NotFinite::Saturate => {
            saturated_pieces(x, f32::MAX, |at, x| pack_e4m3(x, scale, &mut codes[at..at + x.len()]));
        }
        _ => pack_e4m3(x, scale, codes),
    }
    Some(())
}

/// Returns the scale of a block by its largest magnitude: above 0 unless all are 0.
fn scale(largest: f32) -> f32 {
    let scale = largest / LARGEST;
    if largest > 0.0 { scale.max(f32::from_bits(1)) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::{Codec, CodecError};
    use super::*;

    #[test]
    fn tiny_and_huge_blocks_keep_their_largest_number() {
        for largest in [f32::from_bits(1), 1e-40, 1e-20, 1.0, f32::MAX] {
            let x = [largest, -largest / 2.0, 0.0];
            let mut message = [0; 7];
            E4M3::default().encode(&x, &mut message, 0).unwrap();
            let mut decoded = [9.0; 3];
            E4M3::default().decode(&message, &mut decoded).unwrap();
            let error = (f64::from(decoded[0]) - f64::from(largest)).abs() / f64::from(largest);
            assert!(error <= 1.0 / 16.0 && decoded[2] == 0.0, "{largest:e}: {decoded:?}");
        }
    }

    #[test]
    fn nan_and_infinity_are_refused_or_propagate_or_saturate() {
        let x = [1.0, f32::NAN, f32::INFINITY, -2.0];
        let treated = |not_finite| {
            let codec = E4M3::default().with_not_finite(not_finite);
            let mut message = [0; 8];
            let mut decoded = [0.0; 4];
            codec.encode(&x, &mut message, 0)?;
            codec.decode(&message, &mut decoded)?;
            Ok::<_, CodecError>(decoded)
        };
        assert!(matches!(treated(NotFinite::Refuse), Err(CodecError::NotFinite { index: 1, .. })));
        let propagated = treated(NotFinite::Propagate).unwrap();
        assert!(propagated[1].is_nan() && propagated[2].is_nan());
        assert_eq!((propagated[0], propagated[3]), (1.0, -2.0));
        let saturated = treated(NotFinite::Saturate).unwrap();
        assert_eq!(saturated[..2], [0.0, 0.0]);
        assert!(saturated[2] > 3.0e38 && saturated[3] == 0.0);
    }
}
