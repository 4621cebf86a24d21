//! NVIDIA GPUs: memory and arithmetic through the driver; a machine needs nothing else.
//!
//! | module | content |
//! |---|---|
//! | `driver` | the driver: its library, handles, devices, modules and NVRTC |
//! | `gpu` | one GPU in this process |
//! | `streams` | the order of work: streams, events, times; streams and tensors of other libraries; failures |
//! | `memory`, `pool` | device memory and pinned host memory |
//! | `launch`, `arithmetic` | kernels |
//! | `kinds`, `kernel_error` | input that kernels refuse |
//! | `queue` | the queue of a device, made of these |
//! | `enqueue` | the support for paths between devices |
//!
//! Without a driver, [`Cuda::new`] returns an error. The modules are compiled only with the feature `cuda`.

#![allow(clippy::disallowed_methods, reason = "a device, with a thread of its own")]

mod arithmetic;
pub(crate) mod driver;
pub(crate) mod enqueue;
pub(crate) mod gpu;
mod kernel_error;
mod kinds;
mod launch;
mod memory;
mod pool;
mod queue;
pub(crate) mod streams;

pub use driver::devices::Description;
pub(crate) use queue::CudaQueue;
pub use streams::exchange::{DeviceTensor, Exchange};
pub(crate) use streams::failure_watch::FailureWatch;
pub use streams::foreign::{ForeignStream, raw_stream};

use super::{Device, Queue};
use crate::error::{Error, Result};
use gpu::Gpu;
use std::ffi::c_int;
use std::sync::Arc;

/// A GPU.
///
/// ```
/// use hexagram_physical::Buffer;
/// use hexagram_physical::device::cuda::Cuda;
///
/// match Cuda::new(0) {
///     Ok(gpu) => {
///         let x = Buffer::from_slice_on(&gpu.queue()?, &[1.0f32, 2.0])?;
///         x.write_all()?.scale(2.0)?;
///         assert_eq!(*x.host::<f32>()?, [2.0, 4.0]);
///     }
///     // Names the library, the driver or the device that is missing.
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Clone)]
pub struct Cuda(Arc<Gpu>);

impl Cuda {
    /// Opens the GPU of this number among those that the process sees (`CUDA_VISIBLE_DEVICES`). Opening it again
    /// returns the same device.
    ///
    /// # Errors
    /// [`Error::Setup`] without a driver, or with one that is too old;
    /// [`Error::Usage`] if there are fewer GPUs; [`Error::System`] if the
    /// driver refuses.
    pub fn new(index: usize) -> Result<Self> {
        Gpu::get(index).map(Cuda)
    }

    /// Creates a queue.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub fn queue(&self) -> Result<Queue> {
        CudaQueue::create(&self.0)
    }

    /// Returns the GPU's properties.
    pub fn description(&self) -> &Description {
        &self.0.about
    }

    /// Returns the free bytes of its memory.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    pub fn free_memory(&self) -> Result<usize> {
        self.0.free_memory().map(|(free, _)| free)
    }
}

impl Device for Cuda {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn queue(&self) -> Result<Queue> {
        Cuda::queue(self)
    }
}

/// Returns the number of GPUs that this process sees.
pub(crate) fn count() -> Result<usize> {
    driver::devices::count()
}

/// Returns the GPUs that this process sees, without opening them.
///
/// # Errors
/// As [`Cuda::new`].
pub fn devices() -> Result<Vec<Description>> {
    driver::devices::all()
}

/// Identity of a GPU.
type GpuUuid = [u8; 16];

/// Identity of a GPU, its place on the host's bus, and the identities of the other GPUs whose memory it reads directly.
type Identified = (GpuUuid, [c_int; 3], Vec<GpuUuid>);

/// Returns the identity of the GPU of a queue. `None` for the queues of other devices.
///
/// # Errors
/// [`Error::System`] if the driver refuses.
pub(crate) fn identify(queue: &Queue) -> Result<Option<Identified>> {
    let Some(queue) = CudaQueue::of(queue) else { return Ok(None) };
    let gpu = &queue.0.gpu;
    Ok(Some((gpu.about.uuid, gpu.place()?, gpu.reaches()?)))
}

/// Returns the version of CUDA that the driver is made for, as major and minor number.
///
/// # Errors
/// As [`Cuda::new`].
pub fn driver_version() -> Result<(u32, u32)> {
    driver::devices::driver_version()
}

/// Returns the numbers of the other GPUs whose memory each one reads directly, among those that this process sees.
///
/// # Errors
/// As [`Cuda::new`].
pub fn peers() -> Result<Vec<Vec<usize>>> {
    driver::devices::peers()
}

/// Creates another queue on the same GPU as a queue.
///
/// # Errors
/// [`Error::Usage`] if it is not a queue of a GPU; [`Error::System`] if the driver refuses.
pub(crate) fn same_device(queue: &Queue) -> Result<Queue> {
    let no_gpu = || Error::usage(format!("{} is not a GPU", queue.name()), "use a queue of a GPU");
    Cuda(Arc::clone(CudaQueue::of(queue).ok_or_else(no_gpu)?.gpu())).queue()
}

#[cfg(test)]
pub(crate) mod tests;
