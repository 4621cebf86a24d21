//! Eight bits per number, relative to the range of its block.
//!
//! `code = round(255 (x − min) / (max − min))`, `x̂ = min + (code / 255)(max − min)`
//!
//! `block = min: f32, max: f32, code₁ … code_B: u8`, little endian; `message = block₁ … block_b`: d + 8⌈d/B⌉ bytes.
//!
//! The error of a number is at most (max − min)/510 and a few roundings, for any magnitude and spread of the numbers;
//! equal numbers are exact. In larger blocks, one outlier affects more numbers.

pub(crate) mod simd;

use super::NotFinite;
#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::{BlockCodec, Format};
use super::shared::not_finite::{PIECE, saturated_pieces};
use simd::Range;

/// Codec of eight bits per number, relative to the range of its block. NaN and infinity propagate to their whole
/// block, as NaN. Blocks of 2048, the default, are encoded in one pass over memory.
pub type MinMax8 = BlockCodec<MinMaxFormat>;

#[cfg(feature = "cuda")]
static KERNELS: cuda::Kernels = cuda::kernels!("min_max", MIN_MAX);

/// Format of [`MinMax8`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinMaxFormat {}

impl Format for MinMaxFormat {
    const NAME: &'static str = "min-max8";
    const HEADER: usize = 8;
    const BITS: usize = 8;
    const BLOCK: usize = PIECE;
    const ABOUT: &'static str = "elements that share a range";
    #[cfg(feature = "cuda")]
    const KERNELS: Option<&'static cuda::Kernels> = Some(&KERNELS);

    /// Returns the contraction from ‖x̂ − x‖² ≤ B (max − min)²/510² and (max − min)² ≤ 2‖x‖²: δ = 1 − B/(2·255²).
    fn contraction(size: usize) -> f64 {
        1.0 - size as f64 / (2.0 * 255.0 * 255.0)
    }

    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()> {
        match (simd::range(x), not_finite) {
            (Some(range), _) => {
                write(range, header);
                simd::quantize(x, range, codes);
            }
            (None, NotFinite::Refuse) => return None,
            (None, NotFinite::Propagate) => {
                write(Range { min: f32::NAN, max: f32::NAN }, header);
                codes.fill(0);
            }
            (None, NotFinite::Saturate) => encode_saturated(x, header, codes),
        }
        Some(())
    }

    fn decode_add(header: &[u8], codes: &[u8], weight: f32, x: &mut [f32]) {
        simd::add_dequantized(codes, read(header), weight, x);
    }

    fn decode(header: &[u8], codes: &[u8], x: &mut [f32]) {
        simd::dequantize(codes, read(header), x);
    }
}

fn encode_saturated(x: &[f32], header: &mut [u8], codes: &mut [u8]) {
    let mut range: Option<Range> = None;
    saturated_pieces(x, f32::MAX, |_, x| {
        let piece = simd::range(x);
        range = range.map_or(piece, |range| piece.map(|piece| range.merge(piece)));
    });
    let range = range.unwrap_or(Range { min: 0.0, max: 0.0 });
    write(range, header);
    saturated_pieces(x, f32::MAX, |at, x| simd::quantize(x, range, &mut codes[at..at + x.len()]));
}

fn write(range: Range, header: &mut [u8]) {
    header[..4].copy_from_slice(&range.min.to_le_bytes());
    header[4..].copy_from_slice(&range.max.to_le_bytes());
}

fn read(header: &[u8]) -> Range {
    let [min, max] = bytemuck::pod_read_unaligned::<[[u8; 4]; 2]>(header).map(f32::from_le_bytes);
    Range { min, max }
}
