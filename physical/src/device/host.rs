//! The host kernels on typed bytes.

use super::codec::{Codec, CodecError};
use super::operations::{reduce as arithmetic, weighted};
use super::{Kernel, Operands, codec};
use crate::error::Result;
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{ReadView, WriteView};
use crate::runtime::{Work, charge};

/// Combines each element of `to` with that of `from`.
pub(crate) fn reduce(op: ReduceOp, dtype: DType, from: &[u8], to: &mut [u8]) {
    charge(|| Work::Reduce { bytes: to.len() });
    arithmetic::reduce(op, dtype, from, to);
}

/// Multiplies each element.
pub(crate) fn scale(dtype: DType, factor: f64, to: &mut [u8]) {
    charge(|| Work::Scale { bytes: to.len() });
    arithmetic::scale(dtype, factor, to);
}

/// Adds a multiple of each element of `from` to that of `to`.
pub(crate) fn add_scaled(dtype: DType, weight: f64, from: &[u8], to: &mut [u8]) {
    charge(|| Work::Reduce { bytes: to.len() });
    arithmetic::add_scaled(dtype, weight, from, to);
}

/// Stores a weighted sum of runs, where `None` is the stored run.
pub(crate) fn weighted_sum(dtype: DType, terms: &[(f64, Option<&[u8]>)], to: &mut [u8]) {
    charge(|| Work::WeightedSum { terms: terms.len(), bytes: to.len() });
    weighted::sum(dtype, terms, to);
}

/// Encodes the f32 that `from` holds to the beginning of `to`, which has room for the largest message.
pub(crate) fn encode(codec: &dyn Codec, from: &[u8], to: &mut [u8], seed: u64) -> Result<usize, CodecError> {
    charge(|| Work::Encode { codec: codec.name(), elements: from.len() / size_of::<f32>() });
    codec::encode(codec, bytemuck::cast_slice(from), to, seed)
}

/// Decodes the message `from` into the f32 that `to` holds: adds a multiple of it, or stores it without a weight.
pub(crate) fn decode(
    codec: &dyn Codec,
    from: &[u8],
    weight: Option<f32>,
    to: &mut [u8],
) -> Result<(), CodecError> {
    charge(|| Work::Decode { codec: codec.name(), elements: to.len() / size_of::<f32>() });
    let to: &mut [f32] = bytemuck::cast_slice_mut(to);
    match weight {
        Some(weight) => codec.decode_add(from, weight, to),
        None => codec.decode(from, to),
    }
}

/// Runs a kernel on views of host memory.
pub(crate) fn run(kernel: &dyn Kernel, reads: &[ReadView], writes: &mut [WriteView]) -> Result<()> {
    charge(|| {
        let read: usize = reads.iter().map(ReadView::byte_len).sum();
        let written: usize = writes.iter().map(WriteView::byte_len).sum();
        Work::Kernel { bytes: read + written }
    });
    kernel.run(Operands {
        reads: reads.iter().map(|view| (view.dtype(), view.bytes())).collect(),
        writes: writes.iter_mut().map(|view| (view.dtype(), view.bytes_mut())).collect(),
    })
}
