//! The elements of a candle tensor in host memory for hexagram, by element type.

use crate::error::{Error, Result};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Shape, Storage, Tensor};
use hexagram_algorithms::logical::{Buffer, DType, ReadView};
use std::ops::Range;

/// Runs `$body` with `$slice` as the elements of a CPU storage, mutable after `(mut)`, for every element type.
macro_rules! with_elements {
    ($storage:expr, $range:expr, $(($mutable:tt))? $slice:ident => $body:expr) => {{
        macro_rules! with {
            ($all:ident) => {{
                let $slice = & $($mutable)? $all[$range];
                $body
            }};
        }
        match $storage {
            CpuStorage::F32(all) => with!(all),
            CpuStorage::F64(all) => with!(all),
            CpuStorage::F16(all) => with!(all),
            CpuStorage::BF16(all) => with!(all),
            _ => Err(candle_core::Error::msg("only f16, bf16, f32 and f64 can be trained").into()),
        }
    }};
}
pub(crate) use with_elements;

/// Returns the range of a contiguous tensor in its storage.
pub(crate) fn range(layout: &Layout) -> Range<usize> {
    layout.start_offset()..layout.start_offset() + layout.shape().elem_count()
}

/// Returns the hexagram type for a candle type.
pub(crate) fn dtype(tensor: &Tensor) -> Result<DType> {
    match tensor.dtype() {
        candle_core::DType::F32 => Ok(DType::F32),
        candle_core::DType::F64 => Ok(DType::F64),
        candle_core::DType::F16 => Ok(DType::F16),
        candle_core::DType::BF16 => Ok(DType::BF16),
        other => Err(Error::usage(format!("tensors of {other:?} cannot be trained"), "use a float type")),
    }
}

/// Runs `work` with the elements of a tensor in place.
pub(crate) fn lend<R>(tensor: &Tensor, work: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => {
            with_elements!(storage, range(layout), elements => Buffer::lend(elements, work))
        }
        _ => Err(not_on_cpu()),
    }
}

/// Returns a copy of the elements of a tensor.
pub(crate) fn to_buffer(tensor: &Tensor) -> Result<Buffer> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => {
            with_elements!(storage, range(layout), elements => Ok(Buffer::from_slice(elements)?))
        }
        _ => Err(not_on_cpu()),
    }
}

fn not_on_cpu() -> Error {
    Error::usage(
        "a tensor is not in host memory",
        "move it to the device of the model: see ReplicaOptions::device",
    )
}

/// Returns a tensor with the elements of a buffer, or of a part of one.
pub(crate) fn to_tensor(view: &ReadView, dtype: DType, shape: &Shape) -> Result<Tensor> {
    Ok(Tensor::from_raw_buffer(host_bytes(view)?, to_candle(dtype), shape.dims(), &Device::Cpu)?)
}

/// Returns the candle type for a type that can be trained.
pub(crate) fn to_candle(dtype: DType) -> candle_core::DType {
    match dtype {
        DType::F64 => candle_core::DType::F64,
        DType::F16 => candle_core::DType::F16,
        DType::BF16 => candle_core::DType::BF16,
        _ => candle_core::DType::F32,
    }
}

/// Maximum number of elements of which [`seems_same`] compares all.
const WHOLE: usize = 1024;
const SAMPLES: usize = 32;

/// Returns true if two contiguous tensors hold the same bits in the compared elements: all of a small tensor, and
/// [`SAMPLES`] of a large one, different ones in each `turn`.
pub(crate) fn seems_same(one: &Tensor, other: &Tensor, turn: u64) -> Result<bool> {
    let (one, one_layout) = one.storage_and_layout();
    let (other, other_layout) = other.storage_and_layout();
    let (Storage::Cpu(one), Storage::Cpu(other)) = (&*one, &*other) else { return Err(not_on_cpu()) };
    with_elements!(one, range(one_layout), one => with_elements!(other, range(other_layout), other => {
        let stride = if one.len() <= WHOLE { 1 } else { one.len() / SAMPLES };
        let looked_at = (turn as usize % stride..one.len()).step_by(stride);
        let same = |at: usize| bytemuck::bytes_of(&one[at]) == bytemuck::bytes_of(&other[at]);
        Ok(one.len() == other.len() && looked_at.into_iter().all(same))
    }))
}

/// Returns the bytes of a view, which candle needs in host memory.
fn host_bytes(view: &ReadView) -> Result<&[u8]> {
    view.host_bytes().ok_or_else(not_on_cpu)
}

/// Writes the elements of a flat buffer into existing tensors, reading it once.
pub(crate) fn overwrite(tensors: &[&Tensor], elements: &ReadView) -> Result<()> {
    /// Small enough to be in the cache for the second tensor.
    const PIECE: usize = 16 << 10;
    for (piece, at) in host_bytes(elements)?.chunks(PIECE).zip((0..).step_by(PIECE)) {
        for tensor in tensors {
            tensor.inplace_op1(&Put { piece, at })?;
        }
    }
    Ok(())
}

/// Writes bytes to a place of a contiguous tensor.
struct Put<'a> {
    piece: &'a [u8],
    at: usize,
}

impl InplaceOp1 for Put<'_> {
    fn name(&self) -> &'static str {
        "hexagram-put"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let bytes: Result<&mut [u8]> =
            with_elements!(storage, range(layout), (mut) elements => Ok(bytemuck::cast_slice_mut(elements)));
        let bytes = bytes.map_err(candle_core::Error::wrap)?;
        let len = bytes.len();
        match bytes.get_mut(self.at..self.at + self.piece.len()) {
            Some(place) => place.copy_from_slice(self.piece),
            None => candle_core::bail!("{} bytes at {} of {}", self.piece.len(), self.at, len),
        }
        Ok(())
    }
}
