//! Memory of a model's tensors, and the way of their numbers to the engine and back.

use crate::error::{Error, Result};
#[cfg(feature = "cuda")]
use crate::gpu::Gpu;
use crate::parameters::Entry;
use crate::values;
use candle_core::{Device, Shape, Tensor};
use hexagram_algorithms::logical::{Buffer, DType, ReadView};
use hexagram_algorithms::{DataParallel, EngineOptions};
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::time::Duration;

/// Memory of a model.
///
/// On a GPU, tensors are written in an [`exchange`](Self::exchange): hexagram waits for candle before it, and candle for
/// hexagram after it.
#[derive(Clone)]
pub(crate) enum Home {
    Host,
    #[cfg(feature = "cuda")]
    Gpu(Arc<Gpu>),
}

impl Home {
    /// Opens the memory of a device, and has the engine make its buckets there. The program waits for work of that device
    /// for `limit` at most.
    pub(crate) fn open(device: &Device, engine: &mut EngineOptions, limit: Duration) -> Result<Self> {
        engine.queue.set_limit(limit);
        match device {
            Device::Cpu if engine.queue.is_host() => Ok(Home::Host),
            Device::Cpu => {
                let what =
                    format!("the model is in host memory, and the engine's queue of {}", engine.queue.name());
                Err(Error::usage(what, "set ReplicaOptions::device to that device, or leave out the queue"))
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(Home::Gpu(Arc::new(Gpu::open(device, engine, limit)?))),
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) => {
                Err(Error::usage("this build trains on the CPU only", "build it with the feature `cuda`"))
            }
            Device::Metal(_) => Err(Error::usage("models are not trained on Metal", "use Device::Cpu")),
        }
    }

    /// Returns true if tensors are in host memory.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self, Home::Host)
    }

    /// Lets traces have the times at which a GPU computes candle's passes.
    pub(crate) fn stamp_passes(&self, engine: &mut DataParallel) {
        match self {
            Home::Host => _ = engine,
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => {
                let gpu = Arc::clone(gpu);
                engine.trace().stamp_passes(move || gpu.timestamp());
            }
        }
    }

    /// Runs `work`, which reads and writes tensors, behind what candle has enqueued so far and before what it enqueues
    /// from then on.
    pub(crate) fn exchange<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        match self {
            Home::Host => work(),
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => {
                gpu.receive()?;
                let result = work()?;
                gpu.give_back()?;
                Ok(result)
            }
        }
    }

    /// Runs `work` with a gradient's elements where they are: candle never changes them.
    pub(crate) fn lend_gradient<R>(
        &self,
        gradient: &Tensor,
        work: impl FnOnce(&Buffer) -> Result<R>,
    ) -> Result<R> {
        match self {
            Home::Host => values::lend(gradient, work),
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => {
                let gradient = gradient.contiguous()?;
                gpu.receive()?;
                work(&gpu.borrow(&gradient)?)
            }
        }
    }

    /// Runs `work` with a tensor's elements: where they are on the host, and with a copy on a GPU, as candle may change
    /// them before the work is done.
    pub(crate) fn lend<R>(&self, tensor: &Tensor, work: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
        match self {
            Home::Host => values::lend(tensor, work),
            #[cfg(feature = "cuda")]
            Home::Gpu(_) => work(&self.to_buffer(tensor)?),
        }
    }

    /// Returns a copy of a tensor's elements, where they are.
    pub(crate) fn to_buffer(&self, tensor: &Tensor) -> Result<Buffer> {
        match self {
            Home::Host => values::to_buffer(tensor),
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => {
                let tensor = tensor.contiguous()?;
                self.exchange(|| Ok(gpu.borrow(&tensor)?.copied()?))
            }
        }
    }

    /// Returns a tensor with the elements of a buffer, or of a part of one.
    pub(crate) fn to_tensor(&self, view: &ReadView, dtype: DType, shape: &Shape) -> Result<Tensor> {
        match self {
            Home::Host => values::to_tensor(view, dtype, shape),
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => gpu.to_tensor(view, values::to_candle(dtype), shape),
        }
    }

    /// Puts the elements of a flat buffer into tensors that exist, in an [`exchange`](Self::exchange).
    pub(crate) fn overwrite(&self, tensors: &[&Tensor], elements: &ReadView) -> Result<()> {
        match self {
            Home::Host => values::overwrite(tensors, elements),
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => tensors
                .iter()
                .try_for_each(|tensor| Ok(gpu.borrow(tensor)?.write_all()?.copy_from(elements)?)),
        }
    }

    /// Returns the number of a parameter that is not equal to its copy in the model, as far as is known: on the host, by
    /// a look at some elements, other ones with each `turn`; on a GPU, by what was compared a turn before, where what is
    /// compared now is read in the [`exchange`](Self::exchange) that follows.
    pub(crate) fn stale(&self, parameters: &[Entry], turn: u64) -> Result<Option<usize>> {
        match self {
            Home::Host => {
                for (index, Entry { var, tap, .. }) in parameters.iter().enumerate() {
                    if let Some(tap) = tap
                        && !values::seems_same(var, tap, turn)?
                    {
                        return Ok(Some(index));
                    }
                }
                Ok(None)
            }
            #[cfg(feature = "cuda")]
            Home::Gpu(gpu) => gpu.stale(parameters),
        }
    }
}
