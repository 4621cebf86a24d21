//! The codec of section 7 of `docs/write-your-own-codec.md`, for tests only: a format without kernels.
//!
//! ```text
//! s = max |x| of the block;   x̂ = s · sign(x) if |x| ≥ s/2, else 0
//!
//! block = s: f32, code₁ … code_B: 2 bits each, 1 for s, 2 for −s, others for 0, the lower bits of a byte first
//! ```
//!
//! The error of a number is at most s/2, and at most the number itself, so that ‖x̂ − x‖² ≤ (B−1)/(B+3) ‖x‖².

use super::NotFinite;
use super::shared::blocks::{BlockCodec, Format, read_scale};
use super::shared::not_finite::saturated;
use hexagram_physical::device::kernels::all_finite;

/// Codec of ternary numbers. NaN and infinity propagate to their whole block, as NaN.
pub type Ternary = BlockCodec<TernaryFormat>;

/// Format of [`Ternary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TernaryFormat {}

impl Format for TernaryFormat {
    const NAME: &'static str = "ternary";
    const HEADER: usize = 4;
    const BITS: usize = 2;
    const BLOCK: usize = 128;

    fn contraction(size: usize) -> f64 {
        4.0 / (size as f64 + 3.0)
    }

    fn encode(not_finite: NotFinite, x: &[f32], header: &mut [u8], codes: &mut [u8]) -> Option<()> {
        let finite = |x: &f32| saturated(*x, f32::MAX);
        let scale = match not_finite {
            NotFinite::Refuse if !all_finite(x) => return None,
            NotFinite::Propagate if !all_finite(x) => f32::NAN,
            _ => x.iter().fold(0.0, |most, x| finite(x).abs().max(most)),
        };
        header.copy_from_slice(&scale.to_le_bytes());
        for (byte, x) in codes.iter_mut().zip(x.chunks(4)) {
            let code = |x: f32| u8::from(x != 0.0 && 2.0 * x.abs() >= scale) << u8::from(x < 0.0);
            *byte = x.iter().rev().fold(0, |byte, x| byte << 2 | code(finite(x)));
        }
        Some(())
    }

    fn decode_add(header: &[u8], codes: &[u8], weight: f32, x: &mut [f32]) {
        for (at, x) in x.iter_mut().enumerate() {
            let code = codes[at / 4] >> (2 * (at % 4)) & 3;
            *x += weight * (read_scale(header) * [0.0, 1.0, -1.0, 0.0][usize::from(code)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Codec, CodecError};
    use super::*;
    use crate::testing::{Late, queue};
    use hexagram_physical::{Buffer, DType};

    /// Two blocks of 3 and 2 numbers, their message, and the decoded numbers.
    const X: [f32; 5] = [4.0, -2.0, 1.0, 0.0, -0.5];
    const DECODED: [f32; 5] = [4.0, -4.0, 0.0, 0.0, -0.5];

    fn message() -> Vec<u8> {
        [&4.0f32.to_le_bytes()[..], &[0b00_10_01], &0.5f32.to_le_bytes(), &[0b10_00]].concat()
    }

    #[test]
    fn a_message_has_the_documented_layout() {
        let codec = Ternary::in_blocks(3);
        let mut encoded = vec![0; codec.encoded_len(5)];
        assert_eq!(codec.encode(&X, &mut encoded, 0), Ok(10));
        assert_eq!(encoded, message());
        let mut sum = [1.0; 5];
        codec.decode_add(&encoded, 2.0, &mut sum).unwrap();
        assert_eq!(sum, [9.0, -7.0, 1.0, 1.0, 0.0]);
        assert_eq!(codec.properties().contraction, Some(4.0 / 6.0));
    }

    #[test]
    fn nan_and_infinity_are_refused_or_propagate_or_saturate() {
        let x = [1.0, f32::NEG_INFINITY, f32::NAN, 2.0];
        let treated = |not_finite| {
            let codec = Ternary::in_blocks(3).with_not_finite(not_finite);
            let mut message = vec![0; codec.encoded_len(4)];
            let mut decoded = [7.0; 4];
            codec.encode(&x, &mut message, 0)?;
            codec.decode(&message, &mut decoded)?;
            Ok::<_, CodecError>(decoded)
        };
        assert!(matches!(treated(NotFinite::Refuse), Err(CodecError::NotFinite { index: 1, .. })));
        let propagated = treated(NotFinite::Propagate).unwrap();
        assert!(propagated[..3].iter().all(|x| x.is_nan()) && propagated[3] == 2.0);
        assert_eq!(treated(NotFinite::Saturate).unwrap(), [0.0, -f32::MAX, 0.0, 2.0]);
    }

    #[test]
    fn the_host_encodes_and_decodes_memory_of_a_device() {
        let codec = Ternary::in_blocks(3);
        assert!(codec.encode_program(5, 0).is_none());
        assert!(codec.decode_program(5, None).is_none() && codec.decode_program(5, Some(2.0)).is_none());
        for queue in [Late::new(1).queue(), queue()] {
            let x = Buffer::from_slice_on(&queue, &X).unwrap();
            let encoded = Buffer::zeroed_on(&queue, DType::U8, 10).unwrap();
            let size = encoded.write_all().unwrap().encode(&codec, &x.read_all().unwrap(), 0).unwrap();
            assert_eq!(size, Ok(10));
            assert_eq!(*encoded.host::<u8>().unwrap(), message());
            let decoded = Buffer::from_slice_on(&queue, &[7.0f32; 5]).unwrap();
            let from = encoded.read_all().unwrap();
            decoded.write_all().unwrap().decode(&codec, &from, None).unwrap().unwrap();
            assert_eq!(*decoded.host::<f32>().unwrap(), DECODED);
            decoded.write_all().unwrap().decode(&codec, &from, Some(-1.0)).unwrap().unwrap();
            assert_eq!(*decoded.host::<f32>().unwrap(), [0.0; 5]);
        }
    }
}
