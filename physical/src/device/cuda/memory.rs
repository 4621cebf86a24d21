//! Memory of a GPU, and pinned memory of the host, to and from which it copies at full speed.

use super::driver::handle::{PoolHandle, StreamHandle};
use super::driver::library;
use super::gpu::Gpu;
use super::pool::PinnedPool;
use super::streams::stream::CudaStream;
use crate::device::Queue;
use crate::error::{Error, Result};
use crate::memory::dtype::DType;
use crate::memory::{ALIGNMENT, Buffer};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that an allocation waits for work that may hold memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// The size of shared memory is a multiple of this, as NVIDIA requires: the driver shares whole blocks of this size, including
/// all other data in them.
const LENT: usize = 2 << 20;

/// Origin of memory, to which it is returned.
#[derive(Clone, Copy)]
enum MemorySource {
    /// The device's pool, in stream order.
    Pool(PoolHandle),
    /// Memory kept from earlier allocations, if pools are unsupported.
    Kept,
    /// Memory that can be shared with other processes, kept from earlier allocations of the kind. The driver frees
    /// such memory when all work of the device is done, and may wait for that before it allocates more. Through that
    /// it may wait for other ranks, so memory is freed only when it runs out.
    Lent,
}

impl MemorySource {
    /// Returns the origin of memory that only this process uses.
    fn of(gpu: &Gpu) -> Self {
        gpu.pool.map_or(MemorySource::Kept, MemorySource::Pool)
    }

    /// Returns the size to allocate for `bytes` bytes.
    fn size(self, bytes: usize) -> usize {
        match self {
            MemorySource::Pool(_) => bytes,
            MemorySource::Kept => PinnedPool::class(bytes),
            MemorySource::Lent => bytes.checked_next_multiple_of(LENT).unwrap_or(bytes),
        }
    }
}

/// Memory of a device that its stream or a buffer owns.
///
/// Work in flight keeps it. So it is unused when dropped, and freed immediately.
pub(super) struct DeviceAllocation {
    pub(super) address: u64,
    pub(super) bytes: usize,
    source: MemorySource,
    gpu: Arc<Gpu>,
    stream: StreamHandle,
}

impl DeviceAllocation {
    /// Allocates memory with arbitrary content for work of a stream, and for work that waits for it. The stream must
    /// outlive the memory. Does not wait, so the caller may hold the stream.
    ///
    /// # Errors
    /// [`Error::System`] with the size and the free memory, if memory runs out.
    pub(super) fn at_once(stream: &CudaStream, bytes: usize) -> Result<Self> {
        let gpu = &stream.gpu;
        let room = Self::if_free(stream, bytes, MemorySource::of(gpu), false)?;
        room.ok_or_else(|| out_of_memory(gpu, bytes))
    }

    /// Allocates such memory. If memory runs out, waits for work in flight, since that may keep the memory of values
    /// that are already dropped. The work must not depend on anything that the caller has yet to enqueue.
    ///
    /// # Errors
    /// As [`DeviceAllocation::at_once`].
    pub(super) fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self> {
        Self::of(stream, bytes, MemorySource::of(&stream.gpu))
    }

    fn of(stream: &Arc<CudaStream>, bytes: usize, source: MemorySource) -> Result<Self> {
        let mut room = Self::if_free(stream, bytes, source, false)?;
        // The first wait drops the values that the work kept. The second one completes frees in stream order.
        for is_last in [false, true] {
            if room.is_none() {
                stream.gpu.wait(PATIENCE);
                room = Self::if_free(stream, bytes, source, is_last)?;
            }
        }
        room.ok_or_else(|| out_of_memory(&stream.gpu, bytes))
    }

    /// Allocates memory; returns `None` if memory runs out, also if kept memory cannot be freed immediately. The last
    /// attempt frees that, too, however long it takes.
    fn if_free(
        stream: &CudaStream,
        bytes: usize,
        source: MemorySource,
        is_last: bool,
    ) -> Result<Option<Self>> {
        let CudaStream { gpu, handle: stream, .. } = stream;
        let stream = *stream;
        let _current = gpu.enter()?;
        let bytes = source.size(bytes);
        let kept = match source {
            MemorySource::Pool(_) => None,
            MemorySource::Kept => gpu.freed.take(bytes),
            MemorySource::Lent => gpu.lent.take(bytes),
        };
        let mut address = kept.unwrap_or(0) as u64;
        let mut allocate = || match source {
            _ if address != 0 => CUresult::CUDA_SUCCESS,
            // SAFETY: the pointer is valid for a write of one address, the pool is valid, and the stream lives.
            MemorySource::Pool(pool) => unsafe {
                sys::cuMemAllocFromPoolAsync(&mut address, bytes, pool.0, stream.0)
            },
            // SAFETY: the pointer is valid for a write of one address.
            MemorySource::Kept | MemorySource::Lent => unsafe { sys::cuMemAlloc_v2(&mut address, bytes) },
        };
        let mut status = allocate();
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            gpu.trim_pool();
            if is_last {
                gpu.free_kept()
            } else {
                gpu.if_idle(Gpu::free_kept)
            }
            status = allocate();
        }
        if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Ok(None);
        }
        gpu.expect(status, &format!("allocate {bytes} bytes"))?;
        Ok(Some(DeviceAllocation { address, bytes, source, gpu: Arc::clone(gpu), stream }))
    }
}

impl Drop for DeviceAllocation {
    fn drop(&mut self) {
        match self.source {
            MemorySource::Kept => self.gpu.freed.put(self.bytes, self.address as usize),
            MemorySource::Lent => self.gpu.lent.put(self.bytes, self.address as usize),
            MemorySource::Pool(_) => {
                // On a lost device this fails, and nothing is left to free.
                let Ok(_current) = self.gpu.enter() else { return };
                // SAFETY: it was allocated so, and it is no longer in use.
                unsafe { sys::cuMemFreeAsync(self.address, self.stream.0) };
            }
        }
    }
}

/// Memory of a buffer, which keeps the stream that it was allocated for.
pub(super) struct DeviceMemory {
    pub(super) room: DeviceAllocation,
    _stream: Arc<CudaStream>,
}

impl DeviceMemory {
    /// Allocates memory with arbitrary content.
    ///
    /// # Errors
    /// As [`DeviceAllocation::new`].
    pub(super) fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self> {
        Self::of(stream, bytes, MemorySource::of(&stream.gpu))
    }

    /// Allocates memory with arbitrary content that can be shared with other processes.
    ///
    /// # Errors
    /// As [`DeviceAllocation::new`].
    pub(super) fn shareable(stream: &Arc<CudaStream>, bytes: usize) -> Result<Self> {
        Self::of(stream, bytes, MemorySource::Lent)
    }

    fn of(stream: &Arc<CudaStream>, bytes: usize, source: MemorySource) -> Result<Self> {
        Ok(DeviceMemory { room: DeviceAllocation::of(stream, bytes, source)?, _stream: Arc::clone(stream) })
    }

    /// Returns the address in the type that a buffer uses.
    pub(super) fn pointer(&self) -> NonNull<u8> {
        let address = NonZeroUsize::new(self.room.address as usize);
        address.map_or(NonNull::dangling(), NonNull::without_provenance)
    }
}

fn out_of_memory(gpu: &Gpu, bytes: usize) -> Error {
    let (free, all) = gpu.free_memory().unwrap_or_default();
    let doing = format!("allocate {bytes} bytes on {}, where {free} of {all} are free", gpu.name);
    let remedy = "use smaller or fewer buffers, or check for other programs on the GPU";
    Error::system(doing, library::cause(CUresult::CUDA_ERROR_OUT_OF_MEMORY), remedy)
}

/// Pinned memory of the host. On drop, neither the host nor the device uses it any more.
pub(super) struct PinnedMemory {
    pub(super) address: NonNull<u8>,
    class: usize,
    gpu: Arc<Gpu>,
}

// SAFETY: only the owner of the value, or the buffer over it, accesses the bytes.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Returns initialised memory with arbitrary content.
    ///
    /// # Errors
    /// [`Error::System`] if the system has no more of it.
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let class = PinnedPool::class(bytes);
        let address = match gpu.pinned.take(class).and_then(NonZeroUsize::new) {
            Some(address) => NonNull::with_exposed_provenance(address),
            None => pinned(gpu, class).inspect_err(|_| gpu.pinned.miss(class))?,
        };
        Ok(PinnedMemory { address, class, gpu: Arc::clone(gpu) })
    }

    /// Returns elements over pinned memory, with arbitrary content.
    pub(super) fn buffer(gpu: &Arc<Gpu>, dtype: DType, len: usize) -> Result<Buffer> {
        let Some(bytes) = len.checked_mul(dtype.size()).filter(|bytes| *bytes > 0) else {
            return Buffer::zeroed(dtype, len);
        };
        let memory = PinnedMemory::new(gpu, bytes)?;
        let address = memory.address;
        // SAFETY: the memory is the host's, initialised, of at least this size, aligned, and lives until the keeper
        // is dropped. Nothing else accesses it until then.
        unsafe { Buffer::over_foreign(&Queue::host(), address, dtype, len, Arc::new(memory)) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.gpu.pinned.put(self.class, self.address.as_ptr().expose_provenance());
    }
}

/// Allocates pinned memory, zeroed.
fn pinned(gpu: &Gpu, bytes: usize) -> Result<NonNull<u8>> {
    let _current = gpu.enter()?;
    let mut address: *mut c_void = null_mut();
    let mut allocate = || {
        // Not write-combined, as the host reads it.
        // SAFETY: the pointer is valid for a write of one address.
        unsafe { sys::cuMemHostAlloc(&mut address, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }
    };
    if gpu.pinned.is_overfull() {
        gpu.if_idle(Gpu::free_pinned);
    }
    let mut status = allocate();
    if status == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        gpu.free_kept();
        status = allocate();
    }
    gpu.expect(status, &format!("pin {bytes} bytes of host memory for copies"))?;
    let missing = || {
        let cause = std::io::Error::other("the driver returned no address, or a misaligned one");
        Error::system(
            format!("pin {bytes} bytes of host memory"),
            cause,
            "check the driver's log with `dmesg`",
        )
    };
    let is_aligned = address.addr().is_multiple_of(ALIGNMENT);
    let address = NonNull::new(address.cast::<u8>()).filter(|_| is_aligned).ok_or_else(missing)?;
    // SAFETY: the driver has just allocated this many bytes, accessible to the host.
    unsafe { address.write_bytes(0, bytes) };
    Ok(address)
}
