//! The host's kernels on bytes that have a type. Open this to see what every device's results must equal.

use super::{reduce, weighted};
use crate::codec::{self, Codec, CodecError};

pub(crate) use reduce::{add_scaled, reduce, scale};
pub(crate) use weighted::sum as weighted_sum;

/// Encodes the f32 that `from` holds to the beginning of `to`, which has room for the largest message.
pub(crate) fn encode(codec: &dyn Codec, from: &[u8], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
    codec::encode(codec, bytemuck::cast_slice(from), to, seed)
}

/// Decodes the message `from` into the f32 that `to` holds: adds a multiple of it, or stores it without a weight.
pub(crate) fn decode(
    codec: &dyn Codec,
    from: &[u8],
    weight: Option<f32>,
    to: &mut [u8],
) -> Result<(), CodecError> {
    let to: &mut [f32] = bytemuck::cast_slice_mut(to);
    match weight {
        Some(weight) => codec.decode_add(from, weight, to),
        None => codec.decode(from, to),
    }
}
