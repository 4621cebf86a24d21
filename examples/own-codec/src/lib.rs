//! Ternary numbers: the sign of each large number, and 0 for each small one.
//!
//! ```text
//! kept = |x| ≥ threshold · max |x|;   s = mean |x| of the kept numbers
//! x̂    = s · sign(x) if kept, else 0
//!
//! message = s: f32, code₁ … code_d: 2 bits each, 1 for s, 2 for −s, others for 0, the lower bits of a byte first
//! ```
//!
//! Little endian, and filled up to a whole byte: ⌈d/4⌉ + 4 bytes. The decoded numbers depend on the message alone.

use hexagram::Result;
use hexagram::codec::{Codec, CodecError, Noise, Properties};
use hexagram::logical::options_text::{NamedOptions, Options, above};

/// Codec of ternary numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ternary {
    /// Smallest magnitude that is not rounded to 0, as a part of the largest.
    pub threshold: f64,
}

impl NamedOptions for Ternary {
    fn keyword(&self) -> &'static str {
        "ternary"
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("threshold", &mut self.threshold, above(0.0), "smallest kept part of the maximum")
    }
}

impl Codec for Ternary {
    fn name(&self) -> String {
        self.short(&Ternary { threshold: 0.5 }).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: false, contraction: None, linear: false, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        4 + len.div_ceil(4)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _seed: u64) -> Result<usize, CodecError> {
        if let Some(index) = from.iter().position(|x| !x.is_finite()) {
            return Err(CodecError::NotFinite { index, value: from[index] });
        }
        let largest = from.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let is_kept = |x: f32| x != 0.0 && f64::from(x.abs()) >= self.threshold * f64::from(largest);
        let kept: Vec<f32> = from.iter().filter(|x| is_kept(**x)).map(|x| x.abs()).collect();
        let scale = kept.iter().sum::<f32>() / kept.len().max(1) as f32;
        let (header, codes) = to[..self.encoded_len(from.len())].split_at_mut(4);
        header.copy_from_slice(&scale.to_le_bytes());
        for (byte, x) in codes.iter_mut().zip(from.chunks(4)) {
            let code = |x: &f32| u8::from(is_kept(*x)) << u8::from(*x < 0.0);
            *byte = x.iter().rev().fold(0, |byte, x| byte << 2 | code(x));
        }
        Ok(self.encoded_len(from.len()))
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        let (header, codes) = from.split_first_chunk().ok_or_else(|| CodecError::damaged("no scale"))?;
        if codes.len() != to.len().div_ceil(4) {
            return Err(CodecError::damaged("the number of codes differs"));
        }
        let scale = weight * f32::from_le_bytes(*header);
        for (at, x) in to.iter_mut().enumerate() {
            let code = codes[at / 4] >> (2 * (at % 4)) & 3;
            *x += scale * [0.0, 1.0, -1.0, 0.0][usize::from(code)];
        }
        Ok(())
    }
}
