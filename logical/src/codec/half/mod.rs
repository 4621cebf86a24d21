//! Sixteen-bit floats: every number rounded to f16 or bf16, to the nearest, ties to even.
//!
//! `message = f16(x₁) … f16(x_d)`, little endian: 2d bytes. Numbers that the format rounds to infinity count as
//! infinite: in f16, 65520 and more; in bf16, only those within 2⁻⁹ of the largest f32.

#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::expect_len;
use super::shared::fields::not_finite_field;
use super::shared::not_finite::{PIECE, refuse, saturated_pieces};
use super::{Codec, CodecError, Noise, NotFinite, Properties};
use crate::options_text::{NamedOptions, Options};
use ::half::{bf16, f16};
use hexagram_physical::Result;
use hexagram_physical::device::kernels;
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::{Module, Program};
use std::sync::Arc;

/// Codec that rounds every number to a 16-bit float.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Half {
    format: HalfFormat,
    not_finite: NotFinite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HalfFormat {
    F16,
    BF16,
}

impl Half {
    /// IEEE half precision, with 5 bits of exponent and 10 of fraction: up to 65504, with a relative error of at most
    /// 2⁻¹¹ for numbers from 2⁻¹⁴.
    pub const F16: Half = Half { format: HalfFormat::F16, not_finite: NotFinite::Refuse };

    /// Bfloat16, with 8 bits of exponent, like f32, and 7 of fraction: an error of at most 2⁻⁸, except for denormal
    /// numbers.
    pub const BF16: Half = Half { format: HalfFormat::BF16, not_finite: NotFinite::Refuse };

    /// Sets the treatment of NaN, and of numbers that are infinite in this format.
    #[must_use]
    pub const fn with_not_finite(self, not_finite: NotFinite) -> Self {
        Half { not_finite, ..self }
    }

    /// Rounds `from`; returns true if all of it is finite in this format.
    fn narrow(self, from: &[f32], to: &mut [u8]) -> bool {
        match self.format {
            HalfFormat::F16 => kernels::f32_to_f16(from, to),
            HalfFormat::BF16 => kernels::f32_to_bf16(from, to),
        }
    }

    fn fits(self, x: f32) -> bool {
        match self.format {
            HalfFormat::F16 => f16::from_f32(x).is_finite(),
            HalfFormat::BF16 => bf16::from_f32(x).is_finite(),
        }
    }

    #[cfg(feature = "cuda")]
    fn kernels(self) -> &'static cuda::Kernels {
        use cuda::{Kernels, kernels};
        static MODULE: Module = cuda::module!("half", HALF);
        static F16: Kernels = kernels!("half_f16", &MODULE, None, None);
        static BF16: Kernels = kernels!("half_bf16", &MODULE, None, None);
        match self.format {
            HalfFormat::F16 => &F16,
            HalfFormat::BF16 => &BF16,
        }
    }

    fn largest(self) -> f32 {
        match self.format {
            HalfFormat::F16 => f16::MAX.to_f32(),
            HalfFormat::BF16 => bf16::MAX.to_f32(),
        }
    }
}

impl NamedOptions for Half {
    fn keyword(&self) -> &'static str {
        match self.format {
            HalfFormat::F16 => "f16",
            HalfFormat::BF16 => "bf16",
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        not_finite_field(&mut self.not_finite, options)
    }
}

impl Codec for Half {
    fn name(&self) -> String {
        self.short(&self.with_not_finite(NotFinite::Refuse)).to_string()
    }

    fn check_options(&self) -> Result<()> {
        self.check()
    }

    /// Returns the properties of the format. f16 is not a contraction: numbers below 2⁻²⁵ are lost. bf16 is one,
    /// except for denormal numbers.
    fn properties(&self) -> Properties {
        let contraction = match self.format {
            HalfFormat::F16 => None,
            HalfFormat::BF16 => Some(1.0 - f64::powi(2.0, -16)),
        };
        Properties { unbiased: false, contraction, linear: true, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        len.saturating_mul(2)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        let to = &mut to[..2 * from.len()];
        for (x, codes) in from.chunks(PIECE).zip(to.chunks_mut(2 * PIECE)) {
            match (self.narrow(x, codes), self.not_finite) {
                (true, _) | (false, NotFinite::Propagate) => {}
                (false, NotFinite::Refuse) => return Err(refuse(from, 0, |x| self.fits(x))),
                (false, NotFinite::Saturate) => saturated_pieces(x, self.largest(), |at, x| {
                    self.narrow(x, &mut codes[2 * at..]);
                }),
            }
        }
        Ok(to.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        expect_len(from, self.encoded_len(to.len()), to)?;
        match self.format {
            HalfFormat::F16 => kernels::add_f16(from, weight, to),
            HalfFormat::BF16 => kernels::add_bf16(from, weight, to),
        }
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        expect_len(from, self.encoded_len(to.len()), to)?;
        match self.format {
            HalfFormat::F16 => kernels::f16_to_f32(from, to),
            HalfFormat::BF16 => kernels::bf16_to_f32(from, to),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(self.kernels().encode(cuda::PIECES, len, self.not_finite))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(self.kernels().decode(cuda::PIECES, len, weight))
    }
}
