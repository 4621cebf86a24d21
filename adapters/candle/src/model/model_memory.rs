//! Memory of the tensors of a model, and the transfer of their elements to the engine and back.

#[cfg(feature = "cuda")]
use super::gpu::ModelGpu;
use super::parameters::ModelTensor;
use super::values;
use crate::error::{Error, Result};
use candle_core::{Device, Shape, Tensor};
use hexagram_algorithms::logical::{Buffer, DType, ReadView};
use hexagram_algorithms::{DataParallel, EngineOptions};
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::Duration;

/// Memory of a model.
///
/// On a GPU, tensors are written in an [`exchange`](Self::exchange): hexagram waits for candle before it, and candle
/// for hexagram after it.
#[derive(Clone)]
pub(crate) enum ModelMemory {
    Host,
    #[cfg(feature = "cuda")]
    Gpu(Arc<ModelGpu>),
}

impl ModelMemory {
    /// Opens the memory of a device, and makes the engine create its buckets there. The program waits at most `limit`
    /// for work of that device.
    pub(crate) fn open(device: &Device, engine: &mut EngineOptions, limit: Duration) -> Result<Self> {
        engine.queue.set_limit(limit);
        match device {
            Device::Cpu if engine.queue.is_host() => Ok(ModelMemory::Host),
            Device::Cpu => {
                let what =
                    format!("the model is in host memory, and the engine queue on {}", engine.queue.name());
                Err(Error::usage(what, "set ReplicaOptions::device to that device, or leave out the queue"))
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(ModelMemory::Gpu(Arc::new(ModelGpu::open(device, engine, limit)?))),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => {
                Err(Error::usage("this build trains on the CPU only", "build it with the feature `cuda`"))
            }
            Device::Metal(_) => Err(Error::usage("models are not trained on Metal", "use Device::Cpu")),
        }
    }

    /// Returns true if tensors are in host memory.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, ModelMemory::Host)
    }

    /// Adds the times of the passes of candle on a GPU to traces.
    pub(crate) fn stamp_passes(&self, engine: &mut DataParallel) {
        match self {
            ModelMemory::Host => _ = engine,
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => {
                let gpu = Arc::clone(gpu);
                engine.trace().stamp_passes(move || gpu.timestamp());
            }
        }
    }

    /// Runs `work`, which reads and writes tensors, after the work that candle has enqueued so far and before later
    /// work.
    pub(crate) fn exchange<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        match self {
            ModelMemory::Host => work(),
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => {
                gpu.receive()?;
                let result = work()?;
                gpu.give_back()?;
                Ok(result)
            }
        }
    }

    /// Runs `work` with the elements of a gradient in place: candle never changes them.
    pub(crate) fn lend_gradient<R>(
        &self,
        gradient: &Tensor,
        work: impl FnOnce(&Buffer) -> Result<R>,
    ) -> Result<R> {
        match self {
            ModelMemory::Host => values::lend(gradient, work),
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => {
                let gradient = gradient.contiguous()?;
                gpu.receive()?;
                work(&gpu.borrow(&gradient)?)
            }
        }
    }

    /// Runs `work` with the elements of a tensor: in place on the host, and with a copy on a GPU, as candle may change
    /// them before the work is done.
    pub(crate) fn lend<R>(&self, tensor: &Tensor, work: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
        match self {
            ModelMemory::Host => values::lend(tensor, work),
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(_) => work(&self.to_buffer(tensor)?),
        }
    }

    /// Returns a copy of the elements of a tensor, in the same memory.
    pub(crate) fn to_buffer(&self, tensor: &Tensor) -> Result<Buffer> {
        match self {
            ModelMemory::Host => values::to_buffer(tensor),
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => {
                let tensor = tensor.contiguous()?;
                self.exchange(|| Ok(gpu.borrow(&tensor)?.copied()?))
            }
        }
    }

    /// Returns a tensor with the elements of a buffer, or of a part of one.
    pub(crate) fn to_tensor(&self, view: &ReadView, dtype: DType, shape: &Shape) -> Result<Tensor> {
        match self {
            ModelMemory::Host => values::to_tensor(view, dtype, shape),
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => gpu.to_tensor(view, values::to_candle(dtype), shape),
        }
    }

    /// Writes the elements of a flat buffer into existing tensors, in an [`exchange`](Self::exchange).
    pub(crate) fn overwrite(&self, tensors: &[&Tensor], elements: &ReadView) -> Result<()> {
        match self {
            ModelMemory::Host => values::overwrite(tensors, elements),
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => tensors
                .iter()
                .try_for_each(|tensor| Ok(gpu.borrow(tensor)?.write_all()?.copy_from(elements)?)),
        }
    }

    /// Returns the index of a parameter that differs from its copy in the model, if one is found. On the host it
    /// compares some elements, different ones in each `turn`. On a GPU it returns the result of the comparison a turn
    /// earlier; the current comparison is read in the next [`exchange`](Self::exchange).
    pub(crate) fn stale(&self, parameters: &[ModelTensor], turn: u64) -> Result<Option<usize>> {
        match self {
            ModelMemory::Host => {
                for (index, ModelTensor { var, tap, .. }) in parameters.iter().enumerate() {
                    if let Some(tap) = tap
                        && !values::seems_same(var, tap, turn)?
                    {
                        return Ok(Some(index));
                    }
                }
                Ok(None)
            }
            #[cfg(feature = "cuda")]
            ModelMemory::Gpu(gpu) => gpu.stale(parameters),
        }
    }
}
