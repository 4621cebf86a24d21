//! Unencoded numbers, as messages of a codec. NaN and infinity are refused.
//!
//! `message = x₁ … x_d` as f32, little endian: 4d bytes.

#[cfg(feature = "cuda")]
use super::shared::blocks::cuda;
use super::shared::blocks::expect_len;
use super::shared::not_finite::refuse;
use super::{Codec, CodecError, Noise, Properties};
use hexagram_physical::device::kernels::{Float, all_finite};
#[cfg(feature = "cuda")]
use hexagram_physical::device::program::{Module, Program};
use std::sync::Arc;

#[cfg(feature = "cuda")]
static MODULE: Module = cuda::module!("exact", EXACT);
#[cfg(feature = "cuda")]
static KERNELS: cuda::Kernels = cuda::kernels!("exact", &MODULE, None, None);

/// Lossless codec without compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exact;

impl Codec for Exact {
    fn name(&self) -> String {
        "exact".to_owned()
    }

    fn properties(&self) -> Properties {
        Properties { unbiased: true, contraction: Some(1.0), linear: true, noise: Noise::Relative }
    }

    fn encoded_len(&self, len: usize) -> usize {
        len.saturating_mul(4)
    }

    fn has_fixed_size(&self) -> bool {
        true
    }

    fn shared(&self) -> Option<Arc<dyn Codec>> {
        Some(Arc::new(*self))
    }

    fn encode(&self, from: &[f32], to: &mut [u8], _: u64) -> Result<usize, CodecError> {
        if !all_finite(from) {
            return Err(refuse(from, 0, f32::is_finite));
        }
        let numbers = to.as_chunks_mut().0;
        numbers.iter_mut().zip(from).for_each(|(to, x)| *to = x.to_le_bytes());
        Ok(4 * from.len())
    }

    fn decode_add(&self, from: &[u8], weight: f32, to: &mut [f32]) -> Result<(), CodecError> {
        expect_len(from, self.encoded_len(to.len()), to)?;
        let numbers = from.as_chunks().0.iter();
        to.iter_mut().zip(numbers).for_each(|(x, y)| *x = (*x + weight * f32::from_le_bytes(*y)).canonical());
        Ok(())
    }

    fn decode(&self, from: &[u8], to: &mut [f32]) -> Result<(), CodecError> {
        expect_len(from, self.encoded_len(to.len()), to)?;
        let numbers = from.as_chunks().0.iter();
        to.iter_mut().zip(numbers).for_each(|(x, y)| *x = f32::from_le_bytes(*y));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn encode_program(&self, len: usize, _: u64) -> Option<Program> {
        Some(KERNELS.encode(cuda::PIECES, len, super::NotFinite::Refuse))
    }

    #[cfg(feature = "cuda")]
    fn decode_program(&self, len: usize, weight: Option<f32>) -> Option<Program> {
        Some(KERNELS.decode(cuda::PIECES, len, weight))
    }
}
