//! Memory that other ranks read: registered buffers of this rank, and those of other ranks at their addresses in this process.
//!
//! A process opens the memory of another process once, and keeps it open, since opening is slow. Memory must not be freed while
//! another process has it open. So registered memory of this rank is also kept, and reused for a request of the same size,
//! until the endpoint and all its buffers are dropped.

use super::collectives::clear_away;
use super::contribution::{Contribution, HANDLE};
use crate::device::cuda::CudaQueue;
use crate::device::cuda::gpu::Gpu;
use crate::device::{Allocation, Queue};
use crate::error::{Error, Result};
use crate::memory::dtype::DType;
use crate::memory::{Buffer, Span};
use crate::waiting::lock::lock;
use cudarc::driver::sys::{self, CUipcMem_flags, CUipcMemHandle, CUresult};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The size of registered memory is a multiple of this, so that returned memory fits other requests.
const BLOCK: usize = 2 << 20;

/// All memory that this process has registered, by number: ranks that are threads keep the memory that they read alive, since a
/// stream that is released after a failure may read it after its owner has dropped it.
static ALL: Mutex<Vec<(u64, Weak<ExportedMemory>)>> = Mutex::new(Vec::new());

/// Memory of this process, as other ranks see it.
pub(super) struct ExportedMemory {
    allocation: Allocation,
    bytes: usize,
    /// Number that no other memory of the process has had.
    number: u64,
    handle: [u8; HANDLE],
}

// SAFETY: nothing follows the address but the device.
unsafe impl Send for ExportedMemory {}
// SAFETY: as above.
unsafe impl Sync for ExportedMemory {}

impl ExportedMemory {
    /// Allocates memory.
    ///
    /// # Errors
    /// [`Error::System`] if it runs out, or the driver refuses.
    fn new(queue: &CudaQueue, bytes: usize) -> Result<Arc<Self>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let gpu = queue.gpu();
        let allocation = queue.alloc_shareable(bytes)?;
        let _current = gpu.enter()?;
        let mut handle = CUipcMemHandle { reserved: [0; HANDLE] };
        let address = allocation.address.addr().get() as u64;
        // SAFETY: the pointer is valid for a write, and the memory was allocated just now.
        let status = unsafe { sys::cuIpcGetMemHandle(&mut handle, address) };
        gpu.expect(status, "share memory with other processes")?;
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let memory = Arc::new(ExportedMemory {
            allocation,
            bytes,
            number,
            handle: handle.reserved.map(|byte| byte as u8),
        });
        let mut all = lock(&ALL);
        all.retain(|(_, memory)| memory.strong_count() > 0);
        all.push((number, Arc::downgrade(&memory)));
        Ok(memory)
    }
}

/// Unused registered memory of one rank.
#[derive(Default)]
pub(super) struct Exports(Mutex<Vec<Arc<ExportedMemory>>>);

impl Exports {
    /// Returns memory with arbitrary content.
    ///
    /// # Errors
    /// [`Error::System`] if it runs out.
    pub(super) fn take(self: &Arc<Self>, queue: &CudaQueue, bytes: usize) -> Result<RegisteredMemory> {
        let bytes = bytes.next_multiple_of(BLOCK).max(BLOCK);
        let mut unused = lock(&self.0);
        let found = unused.iter().position(|memory| memory.bytes == bytes);
        let found = found.map(|at| unused.swap_remove(at));
        drop(unused);
        let memory = found.map_or_else(|| ExportedMemory::new(queue, bytes), Ok)?;
        Ok(RegisteredMemory { memory: Some(memory), exports: Arc::clone(self) })
    }

    /// Returns zeroed elements in registered memory.
    ///
    /// # Errors
    /// As [`Exports::take`]; [`Error::Usage`] if the size overflows the address space.
    pub(super) fn buffer(self: &Arc<Self>, queue: &Queue, dtype: DType, len: usize) -> Result<Buffer> {
        let bytes = len.checked_mul(dtype.size()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| {
            Error::usage(format!("{len} elements of {dtype} exceed the address space"), "use fewer")
        })?;
        let Some(cuda) = CudaQueue::of(queue) else { return Buffer::zeroed_on(queue, dtype, len) };
        let bucket = Arc::new(self.take(cuda, bytes)?);
        let address = bucket.memory.as_ref().map_or(NonNull::dangling(), |memory| memory.allocation.address);
        // SAFETY: memory of the queue's device, of at least this size, aligned, and kept alive by the keeper. No other view of
        // it exists, and it is cleared before it is read.
        let buffer = unsafe { Buffer::over_foreign(queue, address, dtype, len, bucket) }?;
        buffer.write_all()?.clear();
        Ok(buffer)
    }
}

/// Registered memory of a buffer, or of copies.
pub(super) struct RegisteredMemory {
    /// `None` once it was given back.
    memory: Option<Arc<ExportedMemory>>,
    exports: Arc<Exports>,
}

impl RegisteredMemory {
    /// Returns the facts that other ranks need to read the bytes from `offset` on.
    pub(super) fn notice(&self, offset: usize) -> Contribution {
        let offset = offset as u64;
        self.memory.as_ref().map_or_else(Contribution::default, |memory| Contribution {
            address: memory.allocation.address.addr().get() as u64 + offset,
            number: memory.number,
            offset,
            bytes: memory.bytes as u64,
            handle: memory.handle,
        })
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        lock(&self.exports.0).extend(self.memory.take());
    }
}

/// Returns memory of another rank of this process.
///
/// # Errors
/// [`Error::Usage`] if it is gone.
pub(super) fn of_this_process(rank: usize, notice: &Contribution) -> Result<Arc<ExportedMemory>> {
    let all = lock(&ALL);
    let found =
        all.iter().find(|(number, _)| *number == notice.number).and_then(|(_, memory)| memory.upgrade());
    found.ok_or_else(|| {
        let what = format!("rank {rank} has dropped the memory of an operation that it takes part in");
        Error::usage(what, "await every operation to its end")
    })
}

/// Returns the registered memory of a span, and the byte at which the span begins.
pub(super) fn registered(span: &Span) -> Option<(&RegisteredMemory, usize)> {
    span.keeper::<RegisteredMemory>().map(|bucket| (bucket, span.offset()))
}

/// Memory of another process.
struct Imported {
    address: u64,
    gpu: Arc<Gpu>,
}

impl Imported {
    /// Opens the memory of a handle.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses.
    fn open(gpu: &Arc<Gpu>, handle: [u8; HANDLE]) -> Result<Self> {
        let mut address = 0;
        let mut try_open = || {
            let _current = gpu.enter()?;
            let handle = CUipcMemHandle { reserved: handle.map(|byte| byte as c_char) };
            let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
            // SAFETY: the pointer is valid for a write of one address.
            Ok(unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) })
        };
        let mut status = try_open()?;
        if status == CUresult::CUDA_ERROR_ALREADY_MAPPED {
            // A closed endpoint may own it. Releasing it may wait for the device, and so for this rank.
            gpu.if_idle(|_| clear_away());
            status = try_open()?;
        }
        gpu.expect(status, "open the memory of another process")?;
        Ok(Imported { address, gpu: Arc::clone(gpu) })
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: it was opened once, and is no longer used.
            unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}

/// Memory of other processes that this one has opened, by rank and number.
#[derive(Default)]
pub(super) struct Imports(Mutex<HashMap<(usize, u64), Imported>>);

impl Imports {
    /// Returns the address at which the device finds `bytes` bytes of another process's memory.
    ///
    /// # Errors
    /// [`Error::System`] if the driver refuses; [`Error::Usage`] if the memory is smaller.
    pub(super) fn find(
        &self,
        gpu: &Arc<Gpu>,
        rank: usize,
        notice: &Contribution,
        bytes: usize,
    ) -> Result<u64> {
        let end = notice.offset.checked_add(bytes as u64);
        if end.is_none_or(|end| end > notice.bytes) {
            let what = format!("rank {rank} has registered too little memory for this operation");
            return Err(Error::usage(what, "report this as a bug"));
        }
        let mut opened = lock(&self.0);
        let opened = match opened.entry((rank, notice.number)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Imported::open(gpu, notice.handle)?),
        };
        Ok(opened.address + notice.offset)
    }
}
