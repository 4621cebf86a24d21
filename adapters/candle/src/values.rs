//! The numbers of a candle tensor, as hexagram sees them: by element type, in host memory.

use crate::error::{Error, Result};
use candle_core::{CpuStorage, Device, Layout, Shape, Storage, Tensor, Var};
use hexagram_algorithms::logical::physical::memory::ReadView;
use hexagram_algorithms::logical::{Buffer, DType};

/// Runs `$body` with `$slice` as the contiguous elements of a CPU storage, whatever their type.
macro_rules! with_elements {
    ($storage:expr, $range:expr, $slice:ident => $body:expr) => {
        match $storage {
            CpuStorage::F32(all) => {
                let $slice = &all[$range];
                $body
            }
            CpuStorage::F64(all) => {
                let $slice = &all[$range];
                $body
            }
            CpuStorage::F16(all) => {
                let $slice = &all[$range];
                $body
            }
            CpuStorage::BF16(all) => {
                let $slice = &all[$range];
                $body
            }
            _ => Err(candle_core::Error::msg("only f16, bf16, f32 and f64 can be trained").into()),
        }
    };
}
pub(crate) use with_elements;

/// hexagram's name of a candle type.
pub(crate) fn dtype(tensor: &Tensor) -> Result<DType> {
    match tensor.dtype() {
        candle_core::DType::F32 => Ok(DType::F32),
        candle_core::DType::F64 => Ok(DType::F64),
        candle_core::DType::F16 => Ok(DType::F16),
        candle_core::DType::BF16 => Ok(DType::BF16),
        other => Err(Error::usage(format!("tensors of {other:?} cannot be trained"), "use a float type")),
    }
}

/// A copy of a tensor's elements.
pub(crate) fn to_buffer(tensor: &Tensor) -> Result<Buffer> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    match &*storage {
        Storage::Cpu(storage) => {
            with_elements!(storage, range, elements => Ok(Buffer::from_slice(elements)?))
        }
        _ => Err(not_on_cpu()),
    }
}

pub(crate) fn not_on_cpu() -> Error {
    Error::usage("a tensor is not in host memory", "put the model on Device::Cpu")
}

/// A tensor with the elements of a buffer, or of a part of one.
pub(crate) fn to_tensor(view: &ReadView, dtype: DType, shape: &Shape) -> Result<Tensor> {
    let candle = match dtype {
        DType::F64 => candle_core::DType::F64,
        DType::F16 => candle_core::DType::F16,
        DType::BF16 => candle_core::DType::BF16,
        _ => candle_core::DType::F32,
    };
    Ok(Tensor::from_raw_buffer(view.bytes(), candle, shape.dims(), &Device::Cpu)?)
}

/// Whether two contiguous tensors hold the same bits.
pub(crate) fn same_elements(one: &Var, other: &Tensor) -> Result<bool> {
    let ((one, one_layout), (other, other_layout)) = (one.storage_and_layout(), other.storage_and_layout());
    let range = |layout: &Layout| layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    let (Storage::Cpu(one), Storage::Cpu(other)) = (&*one, &*other) else { return Err(not_on_cpu()) };
    with_elements!(one, range(one_layout), one => with_elements!(other, range(other_layout), other => {
        Ok(bytemuck::cast_slice::<_, u8>(one) == bytemuck::cast_slice::<_, u8>(other))
    }))
}
