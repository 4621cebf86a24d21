//! Sixteen-bit floats: every element rounded to f16 or bf16, to the nearest, ties to even.
//!
//! `message = f16(x₁) … f16(x_d)`, little endian: 2d bytes.

use super::{Codec, CodecError, Noise, Properties};
use ::half::{bf16, f16};

/// Sixteen-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// 5 bits of exponent, 10 of fraction: up to 65 504.
    F16,
    /// 8 bits of exponent, as f32, 7 of fraction.
    BF16,
}

impl Codec for Half {
    fn name(&self) -> String {
        match self {
            Half::F16 => "f16".to_owned(),
            Half::BF16 => "bf16".to_owned(),
        }
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: true, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        2 * len
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        for (x, code) in from.iter().zip(to.chunks_exact_mut(2)) {
            code.copy_from_slice(&match self {
                Half::F16 => f16::from_f32(*x).to_le_bytes(),
                Half::BF16 => bf16::from_f32(*x).to_le_bytes(),
            });
        }
        Ok(2 * from.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        if from.len() != 2 * to.len() {
            return Err(CodecError::damaged(format!("{} bytes for {} elements", from.len(), to.len())));
        }
        for (x, code) in to.iter_mut().zip(from.chunks_exact(2)) {
            let code = [code[0], code[1]];
            *x += weight
                * match self {
                    Half::F16 => f16::from_le_bytes(code).to_f32(),
                    Half::BF16 => bf16::from_le_bytes(code).to_f32(),
                };
        }
        Ok(())
    }
}
