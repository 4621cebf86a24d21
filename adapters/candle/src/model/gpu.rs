//! A model on a GPU: candle tensors as buffers of hexagram, in the order of the candle stream.
//!
//! candle computes on one stream, by default that of the calling thread, and its calls return before the work is done;
//! so does the hook in its backward pass. Copies by hexagram from there wait for the work that candle had enqueued
//! before.

use super::parameters::Entry;
use super::values;
use crate::error::{Error, Result};
use candle_core::backend::BackendDevice;
use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::DevicePtr;
use candle_core::{CudaDevice, CudaStorage, Device, DeviceLocation, Shape, Storage, Tensor};
use hexagram_algorithms::EngineOptions;
use hexagram_algorithms::logical::device::Timestamp;
use hexagram_algorithms::logical::device::cuda::{Cuda, DeviceTensor, Exchange};
use hexagram_algorithms::logical::device::unequal::Unequal;
use hexagram_algorithms::logical::{Buffer, DType, ReadView};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A GPU with a model.
pub(crate) struct ModelGpu {
    device: CudaDevice,
    exchange: Exchange<OnGpu>,
    /// Parameters that were not equal to their copies in the model, after a pass has compared them.
    unequal: OnceLock<Unequal>,
}

impl ModelGpu {
    /// Opens the GPU of the candle device. The buckets of the engine are created there, unless its queue already
    /// belongs to that GPU. The program waits at most `limit` for work of the GPU.
    pub(crate) fn open(device: &CudaDevice, engine: &mut EngineOptions, limit: Duration) -> Result<Self> {
        let DeviceLocation::Cuda { gpu_id } = device.location() else {
            return Err(Error::usage("candle's device is not a GPU", "make it with Device::new_cuda"));
        };
        let gpu = Cuda::new(gpu_id)?;
        let queue = gpu.queue()?;
        queue.set_limit(limit);
        if engine.queue.is_host() {
            engine.queue = queue.another()?;
        } else if engine.queue.name() != queue.name() {
            let what =
                format!("the model is on {}, and the engine queue on {}", queue.name(), engine.queue.name());
            return Err(Error::usage(
                what,
                "leave out EngineOptions::queue; the default is that of the model",
            ));
        }
        let stream = device.cuda_stream();
        // SAFETY: candle has retained the primary context of the GPU, which contains its stream; the stream lives as
        // long as its handle, or is a default one.
        let stream = unsafe { gpu.foreign_stream(stream.cu_stream().cast(), Arc::new(Arc::clone(&stream))) };
        Ok(ModelGpu {
            device: device.clone(),
            exchange: Exchange::new(queue, stream),
            unequal: OnceLock::new(),
        })
    }

    pub(crate) fn receive(&self) -> Result<()> {
        Ok(self.exchange.receive()?)
    }

    pub(crate) fn give_back(&self) -> Result<()> {
        Ok(self.exchange.give_back()?)
    }

    /// Returns a timestamp after the work of candle so far, for traces.
    pub(crate) fn timestamp(&self) -> Arc<dyn Timestamp> {
        self.exchange.timestamp()
    }

    /// Returns a contiguous tensor as a buffer. Use it only for reading, or between [`receive`](Self::receive) and
    /// [`give_back`](Self::give_back).
    pub(crate) fn borrow(&self, tensor: &Tensor) -> Result<Buffer> {
        let tensor = OnGpu::new(tensor)?;
        // SAFETY: all callers in this crate have called `receive` before, on the thread of candle, and call `give_back`
        // before candle continues, unless the tensor is a gradient, which is never written again.
        Ok(unsafe { self.exchange.borrow(tensor) }?)
    }

    pub(crate) fn to_tensor(
        &self,
        view: &ReadView,
        dtype: candle_core::DType,
        shape: &Shape,
    ) -> Result<Tensor> {
        let tensor = Tensor::zeros(shape, dtype, &Device::Cuda(self.device.clone()))?;
        self.receive()?;
        self.borrow(&tensor)?.write_all()?.copy_from(view)?;
        self.give_back()?;
        Ok(tensor)
    }

    /// Returns the index of a parameter that differed from its copy in the previous call, and enqueues the next
    /// comparison.
    pub(crate) fn stale(&self, parameters: &[Entry]) -> Result<Option<usize>> {
        let unequal = match self.unequal.get() {
            Some(unequal) => unequal,
            None => {
                let made = Unequal::new(self.exchange.queue(), parameters.len())?;
                self.unequal.get_or_init(|| made)
            }
        };
        // Before the queue waits for the current forward pass.
        let found = unequal.first()?;
        self.receive()?;
        for (index, Entry { var, tap, .. }) in parameters.iter().enumerate() {
            if let Some(tap) = tap {
                let [one, other] = [var.as_tensor(), tap].map(|tensor| self.borrow(tensor));
                unequal.compare(index, one?.read_all()?, other?.read_all()?)?;
            }
        }
        Ok(found)
    }
}

/// Contiguous candle tensor in the memory of a GPU.
pub(crate) struct OnGpu {
    /// Keeps the memory alive.
    _tensor: Tensor,
    address: NonZeroUsize,
    dtype: DType,
    len: usize,
}

impl OnGpu {
    fn new(tensor: &Tensor) -> Result<Self> {
        // The same memory, without its graph.
        let tensor = tensor.detach();
        let dtype = values::dtype(&tensor)?;
        let len = tensor.elem_count();
        let (storage, layout) = tensor.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else {
            return Err(Error::usage(
                "a tensor of the model is not on its GPU",
                "build the model on one device",
            ));
        };
        if !layout.is_contiguous() {
            return Err(Error::usage("a tensor of the model is not contiguous", "make it so"));
        }
        let address = address(storage)? as usize + layout.start_offset() * dtype.size();
        let address = NonZeroUsize::new(address).unwrap_or(NonZeroUsize::MIN);
        Ok(OnGpu { _tensor: tensor.clone(), address, dtype, len })
    }
}

/// Returns the address of the first element of a storage.
fn address(storage: &CudaStorage) -> Result<u64> {
    let stream = storage.device.cuda_stream();
    // Each variant also returns an event, recorded when it is dropped, for streams other than that of candle.
    let address = match &storage.slice {
        CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F64(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
        _ => return Err(Error::usage("only f16, bf16, f32 and f64 can be trained", "use a float type")),
    };
    Ok(address)
}

// SAFETY: the tensor is contiguous, as checked; its storage keeps its memory as long as it lives, and never moves it.
unsafe impl DeviceTensor for OnGpu {
    fn address(&self) -> NonNull<u8> {
        NonNull::without_provenance(self.address)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.len
    }
}
