//! Eight-bit floats E4M3, scaled block by block: a sign, four bits of exponent, three of fraction.
//!
//! ```text
//! scale = max |x| / 448
//! code  = x / scale, rounded to the nearest number of E4M3, ties to even;  x̂ = scale · code
//! block = scale: f32, code₁ … code_B: u8, little endian;  message = block₁ … block_b: d + 4⌈d/B⌉ bytes
//! ```
//!
//! The format has no infinity, numbers up to ±448, 2⁻⁶ as its smallest normal one, and steps of 2⁻⁹ below (Micikevicius
//! et al., "FP8 formats for deep learning", 2022). So the error of a number is at most 1/16 of itself, and below
//! 1/28672 of its block's largest at most 2⁻¹⁰ · scale. 8 bits by minimum and maximum have an error in proportion to
//! the range; this codec keeps small numbers beside large ones.

use super::blocks::{Blocks, read_scale};
use super::named::not_finite_field;
use super::not_finite::{PIECE, refuse, saturated};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::spelling::{Options, Spelled};
use hexagram_physical::Result;
use hexagram_physical::device::kernels::{Float, all_finite};
use std::sync::{Arc, LazyLock};

/// Largest number of the format.
const LARGEST: f32 = 448.0;
/// Smallest normal number.
const NORMAL: f32 = 1.0 / 64.0;
/// Number of steps below 1, where steps are smallest.
const STEPS: f32 = 512.0;
/// Code of what is not a number.
const NAN: u8 = 0x7f;

/// Numbers of all codes.
static NUMBERS: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| number(code as u8)));

/// Codec of 8-bit floats with four bits of exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct E4M3 {
    blocks: Blocks,
    not_finite: NotFinite,
}

impl Default for E4M3 {
    /// Returns the codec in blocks of 2048.
    fn default() -> Self {
        Self::in_blocks(PIECE)
    }
}

impl E4M3 {
    /// Creates a codec with one scale for every `size` numbers, at least 1.
    pub fn in_blocks(size: usize) -> Self {
        let blocks = Blocks { size: Some(size), header: 4, bits: 8 };
        E4M3 { blocks, not_finite: NotFinite::Refuse }
    }

    /// Sets the treatment of NaN and infinity. Both propagate as NaN; the others of their block are as without them.
    #[must_use]
    pub fn with_not_finite(self, not_finite: NotFinite) -> Self {
        E4M3 { not_finite, ..self }
    }

    fn encode_block(self, x: &[f32], header: &mut [u8], codes: &mut [u8]) {
        let clean = |x: f32| if self.not_finite == NotFinite::Saturate { saturated(x, f32::MAX) } else { x };
        let magnitude = |x: &f32| Some(clean(*x).abs()).filter(|x| x.is_finite());
        let scale = scale(x.iter().filter_map(magnitude).fold(0.0, f32::max));
        header.copy_from_slice(&scale.to_le_bytes());
        codes.iter_mut().zip(x).for_each(|(to, x)| *to = code(clean(*x), scale));
    }
}

impl Spelled for E4M3 {
    fn word(&self) -> &'static str {
        "e4m3"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.blocks.field(options, "elements that share a scale")?;
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for E4M3 {
    fn name(&self) -> String {
        self.short(&Self::default()).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    /// Returns what follows from errors of at most |x|/16, or 2⁻¹⁰/448 of the block's largest number.
    fn properties(&self) -> Properties {
        let step = 1.0 / (1024.0 * f64::from(LARGEST));
        let delta = |size: usize| 1.0 - 1.01 / 256.0 - 1.01 * size as f64 * step * step;
        let contraction = self.blocks.size.map(delta).filter(|delta| *delta > 0.0);
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
            self.encode_block(x, header, codes);
        }
        Ok(self.encoded_len(from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        for (header, codes, x) in self.blocks.decode(from, to)? {
            let scale = read_scale(header);
            let numbers = codes.iter().map(|code| scale * NUMBERS[usize::from(*code)]);
            x.iter_mut().zip(numbers).for_each(|(x, y)| *x = (*x + weight * y).canonical());
        }
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        for (header, codes, x) in self.blocks.decode(from, to)? {
            let scale = read_scale(header);
            x.iter_mut()
                .zip(codes)
                .for_each(|(x, code)| *x = (scale * NUMBERS[usize::from(*code)]).canonical());
        }
        Ok(())
    }
}

/// Returns the scale of a block by its largest magnitude: above 0 unless all are 0.
fn scale(largest: f32) -> f32 {
    let scale = largest / LARGEST;
    if largest > 0.0 { scale.max(f32::from_bits(1)) } else { 0.0 }
}

/// Returns the code of the number of the format nearest to x / scale.
fn code(x: f32, scale: f32) -> u8 {
    if !x.is_finite() {
        return NAN;
    }
    let sign = (x.to_bits() >> 31 << 7) as u8;
    let y = if scale > 0.0 { (x.abs() / scale).min(LARGEST) } else { 0.0 };
    if y < NORMAL {
        // The eighth step is the smallest normal number, and has the code that follows.
        return sign | (y * STEPS).round_ties_even() as u8;
    }
    let bits = y.to_bits();
    // The lowest three bits of what is left of the fraction are rounded to even; a carry goes to the exponent.
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

/// Returns the number of a code.
fn number(code: u8) -> f32 {
    let exponent = i32::from(code >> 3 & 0xf);
    let fraction = f32::from(code & 7) / 8.0;
    let magnitude = match code & 0x7f {
        NAN => f32::NAN,
        _ if exponent == 0 => fraction / 64.0,
        _ => (1.0 + fraction) * 2f32.powi(exponent - 7),
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_that_of_its_number_and_of_what_is_nearest() {
        let mut numbers: Vec<f32> = (0..NAN).map(number).collect();
        assert!(numbers.is_sorted());
        assert_eq!((numbers[0x7e], numbers[8], numbers[1]), (448.0, NORMAL, 1.0 / STEPS));
        for (at, x) in numbers.iter().enumerate() {
            assert_eq!(code(*x, 1.0), at as u8);
            assert_eq!(code(-x, 1.0), at as u8 | 0x80);
        }
        // Half-way between two numbers, the even code is taken; beside that the nearer one.
        numbers.push(480.0);
        for (at, pair) in numbers.windows(2).enumerate().take(0x7e) {
            let half = (pair[0] + pair[1]) / 2.0;
            assert_eq!(code(half, 1.0), (at + at % 2) as u8, "{half}");
            assert_eq!(code(half.next_down(), 1.0), at as u8);
            assert_eq!(code(half.next_up(), 1.0), at as u8 + 1);
        }
        assert_eq!(code(1e9, 1.0), 0x7e);
    }

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
