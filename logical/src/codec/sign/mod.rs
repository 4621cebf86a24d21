//! One bit per number, its sign, and one scale per block: the mean of the absolute values.
//!
//! `x̂ = (‖x‖₁ / B) sign(x)`, with `sign(±0) = +1` (scaled sign; Karimireddy et al. 2019)
//!
//! `block = ‖x‖₁ / B: f32, sign₁ … sign_B: 1 bit each, 1 if negative, the lowest of a byte first`, little endian and
//! padded to a whole byte; `message = block₁ … block_b`: ⌈B/8⌉ + 4 bytes per block, 1/31.5 of f32 for blocks of 2048.
//!
//! The error of a block is ‖x̂ − x‖² = (1 − ‖x‖₁² / (B‖x‖₂²)) ‖x‖₂²: .363 ‖x‖² for Gaussian numbers, and at worst
//! (one number, all others 0) 1 − 1/B. Blocks therefore bound it for any length of the run. Biased: use feedback.

pub(crate) mod simd;

use super::NotFinite;
#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::{BlockCodec, Format, read_scale};
use super::shared::not_finite::{PIECE, saturated};
use hexagram_physical::device::kernels;

/// Codec of one bit per number, its sign, and of the mean absolute value of its block. NaN and infinity propagate to
/// their whole block.
pub type Sign = BlockCodec<SignFormat>;

#[cfg(feature = "cuda")]
static KERNELS: cuda::Kernels = cuda::kernels!("sign", SIGN, None);

/// Format of [`Sign`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignFormat {}

impl Format for SignFormat {
    const NAME: &'static str = "sign";
    const HEADER: usize = 4;
    const BITS: usize = 1;
    const BLOCK: usize = PIECE;
    #[cfg(feature = "cuda")]
    const KERNELS: Option<&'static cuda::Kernels> = Some(&KERNELS);

    fn contraction(size: usize) -> f64 {
        1.0 / size as f64
    }

    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], signs: &mut [u8]) -> Option<()> {
        let scale = (pack(not_finite, x, signs)? / x.len() as f64) as f32;
        // The bits of a NaN depend on the machine.
        let scale = if scale.is_nan() { f32::NAN } else { scale };
        header.copy_from_slice(&scale.to_le_bytes());
        Some(())
    }

    fn decode_add(header: &[u8], signs: &[u8], weight: f32, x: &mut [f32]) {
        simd::add_signs(signs, weight * read_scale(header), x);
    }

    fn decode(header: &[u8], signs: &[u8], x: &mut [f32]) {
        simd::unpack_signs(signs, read_scale(header), x);
    }
}

/// Packs the signs of a block, and returns ‖x‖₁, or `None` to refuse x. Pieces are summed individually. Lane i of 64
/// adds the sums of pieces i, i + 64, …, and the lanes are added by halves.
fn pack(not_finite: NotFinite, x: &[f32], signs: &mut [u8]) -> Option<f64> {
    if x.len() <= PIECE {
        return pack_piece(not_finite, x, signs);
    }
    let mut lanes = [0.0; kernels::WIDE];
    for (number, (x, signs)) in x.chunks(PIECE).zip(signs.chunks_mut(PIECE / 8)).enumerate() {
        lanes[number % kernels::WIDE] += pack_piece(not_finite, x, signs)?;
    }
    Some(kernels::fold(lanes, |x, y| x + y))
}

fn pack_piece(not_finite: NotFinite, x: &[f32], signs: &mut [u8]) -> Option<f64> {
    let norm = simd::pack_signs(x, signs);
    if norm.is_finite() { Some(norm) } else { careful_norm(not_finite, x) }
}

/// Returns ‖x‖₁ of a piece whose sum in f32 has overflowed or is not finite. Treats NaN and infinity as `not_finite` says;
/// returns `None` to refuse them.
fn careful_norm(not_finite: NotFinite, x: &[f32]) -> Option<f64> {
    let norm = |of: fn(f32) -> f32| x.iter().map(|x| f64::from(of(*x).abs())).sum::<f64>();
    match not_finite {
        NotFinite::Refuse => Some(norm(|x| x)).filter(|norm| norm.is_finite()),
        NotFinite::Propagate => Some(norm(|x| x)),
        NotFinite::Saturate => Some(norm(|x| saturated(x, f32::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Codec;
    use super::*;

    #[test]
    fn pieces_are_added_in_lanes() {
        // Next to 2²⁴ + 1, half of the last place of f64 is lost, but two of them are not, if they are added first.
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
