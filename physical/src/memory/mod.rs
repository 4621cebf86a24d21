//! Counted memory: the buffers that transports read and write. All aliasing that is unsafe is in this folder.
//!
//! A transport may access a buffer long after the call that posted the operation has returned, and even after its
//! future was leaked. Borrowed slices cannot express that. So an operation holds a *view*: a counted lease on a range
//! of a [`Buffer`]. While a view lives, its memory lives, and the memory keeps a list of the ranges in use: a range
//! may have any number of readers, or one writer. A lease that would break this is refused with [`Error::Busy`].
//! Access from the program ([`Buffer::host`], [`Buffer::host_mut`]) also takes a lease.
//!
//! Memory belongs to the host, or to one [`Queue`] of another device. Views of device memory give no bytes: methods
//! of the views do the work on it (see [`crate::device`]), and access from the program copies down, and back.

pub(crate) mod boolean;
pub(crate) mod deferred_drop;
pub mod dtype;
mod elements;
pub mod hash;
pub(crate) mod landing;
mod lend;
mod span;
mod view;

pub use elements::{Elements, ElementsMut};
pub use span::Span;
pub use view::{ReadView, WriteView};

use crate::device::{AccessOrder, DeviceQueue, Queue};
use crate::error::{Error, Result};
use dtype::{DType, Element};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of every buffer that is allocated here, in bytes: a cache line, and any SIMD register of today.
pub const ALIGNMENT: usize = 64;

/// Owner of memory that other code has allocated: it is dropped when neither buffer nor view is left.
pub type Keeper = Arc<dyn Any + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    start: usize,
    end: usize,
    access: Access,
}

/// The leases of one memory.
#[derive(Debug, Default)]
struct Ledger {
    leases: Vec<Lease>,
    /// Set when borrowed memory has gone back to its owner.
    revoked: bool,
}

enum MemoryOwner {
    Heap(Layout),
    /// The caller of `lend`; `writable` is false for `&[T]`.
    Lent {
        writable: bool,
    },
    /// A mapping that other processes share; the keeper keeps it mapped.
    Shared {
        _keeper: Keeper,
        registration: Registration,
    },
    /// A device.
    Device(Keeper),
    /// Another library.
    Foreign(Keeper),
    /// Elements of this program, which are not written as long as the keeper lives.
    Constant {
        _owner: Keeper,
    },
}

/// Identity of registered memory at the endpoint that it was registered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Unique within the process.
    pub(crate) endpoint: u64,
    /// Equal on all ranks.
    pub(crate) index: u32,
}

/// The queue that writes a device's memory, and the order of others' work with it.
struct DeviceOwner {
    queue: Arc<dyn DeviceQueue>,
    order: AccessOrder,
}

struct BufferMemory {
    /// Never dereferenced here if `place` is set.
    pointer: NonNull<u8>,
    bytes: usize,
    owner: MemoryOwner,
    /// `None` of host memory.
    place: Option<Box<DeviceOwner>>,
    ledger: Mutex<Ledger>,
    /// Leases in the ledger, written while it is held.
    in_use: AtomicUsize,
}

// SAFETY: the bytes are reached only through views, and the ledger keeps a writing view disjoint from every other view,
// whichever threads hold them.
unsafe impl Send for BufferMemory {}
// SAFETY: as above; the ledger itself is behind a mutex.
unsafe impl Sync for BufferMemory {}

impl BufferMemory {
    fn new(pointer: NonNull<u8>, bytes: usize, owner: MemoryOwner) -> Self {
        BufferMemory {
            pointer,
            bytes,
            owner,
            place: None,
            ledger: Mutex::default(),
            in_use: AtomicUsize::new(0),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // The ledger is valid after every statement, so a panic elsewhere while it was held does not matter.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(self: &Arc<Self>, range: Range<usize>, access: Access) -> Result<LedgerEntry> {
        let Range { start, end } = range;
        if start > end || end > self.bytes {
            return Err(Error::usage(
                format!("bytes {start}..{end} are not within a buffer of {} bytes", self.bytes),
                "ask for a range inside the buffer",
            ));
        }
        if access == Access::Write
            && matches!(self.owner, MemoryOwner::Lent { writable: false } | MemoryOwner::Constant { .. })
        {
            return Err(Error::usage("a buffer lent for reading cannot be written", "lend it with lend_mut"));
        }
        let mut ledger = self.ledger();
        let taken = ledger.leases.iter().any(|lease| {
            let overlap = lease.start.max(start) < lease.end.min(end);
            overlap && (access == Access::Write || lease.access == Access::Write)
        });
        if taken || ledger.revoked {
            return Err(Error::Busy { start, end, size: self.bytes });
        }
        let lease = Lease { start, end, access };
        ledger.leases.push(lease);
        self.in_use.store(ledger.leases.len(), Ordering::Relaxed);
        Ok(LedgerEntry { memory: Arc::clone(self), lease })
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        if let MemoryOwner::Foreign(keeper)
        | MemoryOwner::Shared { _keeper: keeper, .. }
        | MemoryOwner::Constant { _owner: keeper } = &self.owner
        {
            deferred_drop::keep(keeper);
        }
        if let MemoryOwner::Heap(layout) = self.owner
            && layout.size() > 0
        {
            // SAFETY: allocated in `Buffer::zeroed` with this layout, and no view is left, as views hold an Arc.
            unsafe { dealloc(self.pointer.as_ptr(), layout) }
        }
    }
}

/// One entry of the ledger, given back on drop.
struct LedgerEntry {
    memory: Arc<BufferMemory>,
    lease: Lease,
}

impl LedgerEntry {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: `lease` checked that start is within the allocation (or one past its end).
        unsafe { self.memory.pointer.as_ptr().add(self.lease.start) }
    }

    fn len(&self) -> usize {
        self.lease.end - self.lease.start
    }

    fn place(&self) -> Option<&DeviceOwner> {
        self.memory.place.as_deref()
    }

    #[cfg(feature = "mpi")]
    fn is_lent(&self) -> bool {
        matches!(self.memory.owner, MemoryOwner::Lent { .. })
    }

    fn registration(&self) -> Option<(Registration, usize)> {
        match self.memory.owner {
            MemoryOwner::Shared { registration, .. } => Some((registration, self.lease.start)),
            _ => None,
        }
    }

    /// Replaces this entry by another one.
    fn replace(&mut self, by: Lease) {
        let mut ledger = self.memory.ledger();
        if let Some(entry) = self.entry(&ledger) {
            ledger.leases[entry] = by;
        }
        drop(ledger);
        self.lease = by;
    }

    /// Returns the place of the entry in the ledger.
    fn entry(&self, ledger: &Ledger) -> Option<usize> {
        let Lease { start, end, access } = self.lease;
        ledger.leases.iter().position(|l| l.start == start && l.end == end && l.access == access)
    }
}

impl Drop for LedgerEntry {
    fn drop(&mut self) {
        let mut ledger = self.memory.ledger();
        if let Some(entry) = self.entry(&ledger) {
            ledger.leases.swap_remove(entry);
        }
        // A thread that sees no lease also sees the writes through this lease.
        self.memory.in_use.store(ledger.leases.len(), Ordering::Release);
    }
}

/// A typed run of elements that operations can send from and receive into.
///
/// It owns its memory, except inside [`Buffer::lend`]. It may be dropped while operations are in flight: their views,
/// and running work on a device, keep the memory alive.
///
/// ```
/// use hexagram_physical::Buffer;
///
/// let mut buffer = Buffer::from_slice(&[1.0f32, 2.0, 3.0])?;
/// buffer.host_mut::<f32>()?[1] = 5.0;
/// assert_eq!(*buffer.host::<f32>()?, [1.0, 5.0, 3.0]);
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
pub struct Buffer {
    memory: Arc<BufferMemory>,
    dtype: DType,
    len: usize,
}

impl Buffer {
    /// Returns zeroed elements in host memory.
    ///
    /// # Errors
    /// [`Error::Usage`] if the size overflows the address space, [`Error::System`] if memory runs out.
    pub fn zeroed(dtype: DType, len: usize) -> Result<Self> {
        let layout = layout(dtype, len)?;
        let pointer = if layout.size() == 0 {
            NonNull::<Aligned>::dangling().cast()
        } else {
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
                let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
                Error::system(format!("allocate {} bytes", layout.size()), cause, "use smaller buffers")
            })?
        };
        Ok(Self::over(BufferMemory::new(pointer, layout.size(), MemoryOwner::Heap(layout)), dtype, len))
    }

    /// Returns a copy of `elements`, in host memory.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn from_slice<T: Element>(elements: &[T]) -> Result<Self> {
        let buffer = Self::zeroed(T::DTYPE, elements.len())?;
        buffer.write_all()?.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        Ok(buffer)
    }

    /// Returns zeroed elements that `queue` writes: in the memory of its device.
    ///
    /// # Errors
    /// [`Error::Usage`] if the size overflows the address space, [`Error::System`] if the device's memory runs out.
    pub fn zeroed_on(queue: &Queue, dtype: DType, len: usize) -> Result<Self> {
        let Some(device) = queue.device() else { return Self::zeroed(dtype, len) };
        let bytes = layout(dtype, len)?.size();
        let allocation = device.alloc(bytes)?;
        let memory = BufferMemory::new(allocation.address, bytes, MemoryOwner::Device(allocation.keeper));
        Ok(Self::over(memory.at(queue), dtype, len))
    }

    /// Returns a copy of `elements` that `queue` writes.
    ///
    /// # Errors
    /// As [`Buffer::zeroed_on`].
    pub fn from_slice_on<T: Element>(queue: &Queue, elements: &[T]) -> Result<Self> {
        if queue.is_host() {
            return Self::from_slice(elements);
        }
        let host = queue.host_memory(T::DTYPE, elements.len())?;
        host.write_all()?.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        let buffer = Self::zeroed_on(queue, T::DTYPE, elements.len())?;
        buffer.write_all()?.copy_up(host.read_all()?);
        Ok(buffer)
    }

    /// Returns a buffer over memory that another library has allocated, such as a tensor: on the host, or on the device
    /// of `queue`, which orders all work on it.
    ///
    /// `keeper` is dropped when the last user releases the memory: the thread that drops the buffer or the last view
    /// of it; the thread that polls or cancels the operation with the view (or ends a running copy); or the device.
    /// The device releases an operand when its work is done, on any thread, and holds no lock while it drops the
    /// keeper. Call [`Queue::check`] on this queue and on each queue that reads the memory: soon after, only buffer,
    /// operations and views hold it.
    ///
    /// # Errors
    /// [`Error::Usage`] if the size overflows the address space or `address` is not aligned to the element type.
    ///
    /// # Safety
    /// `address` is that of `len` initialised elements of `dtype`, in host memory or in that of the device of `queue`, which
    /// live as long as `keeper`. While an operation is running on the buffer, or a view or guard of it lives, all access to
    /// them is through the buffer; on a device, all access must always be in the order of `queue`.
    pub unsafe fn over_foreign(
        queue: &Queue,
        address: NonNull<u8>,
        dtype: DType,
        len: usize,
        keeper: Keeper,
    ) -> Result<Self> {
        let bytes = layout(dtype, len)?.size();
        if !address.as_ptr().addr().is_multiple_of(dtype.size()) {
            let what = format!("memory at {address:p} is not aligned to {dtype}");
            return Err(Error::usage(what, "copy it to a new buffer"));
        }
        Ok(Self::over(BufferMemory::new(address, bytes, MemoryOwner::Foreign(keeper)).at(queue), dtype, len))
    }

    /// Returns memory shared with other processes; they only read it. `pointer` is that of `bytes` zeroed bytes,
    /// aligned to [`ALIGNMENT`], that live as long as `keeper`.
    ///
    /// # Safety
    /// As above; and all access in this process is through the buffer.
    pub(crate) unsafe fn shared(
        pointer: NonNull<u8>,
        keeper: Keeper,
        registration: Registration,
        dtype: DType,
        len: usize,
    ) -> Self {
        let owner = MemoryOwner::Shared { _keeper: keeper, registration };
        Self::over(BufferMemory::new(pointer, len * dtype.size(), owner), dtype, len)
    }

    fn over(memory: BufferMemory, dtype: DType, len: usize) -> Self {
        Buffer { memory: Arc::new(memory), dtype, len }
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the queue that orders all work that writes these elements.
    pub fn queue(&self) -> Queue {
        self.memory.place.as_ref().map_or_else(Queue::host, |place| Queue::of(Arc::clone(&place.queue)))
    }

    /// Returns the address of the first element, in host memory or in that of the device of its queue, for another
    /// library. A user of the address must keep the buffer, lease the elements that it reads or writes, and work in
    /// the order of the queue.
    pub fn address(&self) -> NonNull<u8> {
        self.memory.pointer
    }

    /// Returns the range of all elements, which keeps their memory without a lease. It is for another library that
    /// uses its address after the buffer itself may have moved to another thread, under the conditions of
    /// [`address`](Self::address).
    pub fn span(&self) -> Span {
        Span::whole(&self.memory, self.dtype)
    }

    /// Leases a range of elements for reading.
    ///
    /// # Errors
    /// [`Error::Busy`] while an operation writes into the range, [`Error::Usage`] outside the buffer.
    pub fn read(&self, elements: Range<usize>) -> Result<ReadView> {
        self.memory.lease(self.in_bytes(elements), Access::Read).map(|lent| ReadView(lent, self.dtype))
    }

    /// Leases a range of elements for writing.
    ///
    /// # Errors
    /// [`Error::Busy`] while an operation uses the range, [`Error::Usage`] outside the buffer.
    pub fn write(&self, elements: Range<usize>) -> Result<WriteView> {
        self.memory.lease(self.in_bytes(elements), Access::Write).map(|lent| WriteView(lent, self.dtype))
    }

    /// Returns all bytes, for writing, without a lease. `None` for elements that are not in host memory, and while an
    /// operation uses any of them. Also `None` for constant elements, and for lent ones, whose owner waits for leases
    /// only.
    ///
    /// For operations that end before the borrow does.
    pub fn idle_bytes(&mut self) -> Option<&mut [u8]> {
        let BufferMemory { pointer, bytes, owner, place, in_use, .. } = &*self.memory;
        let elsewhere =
            place.is_some() || matches!(owner, MemoryOwner::Lent { .. } | MemoryOwner::Constant { .. });
        if elsewhere || in_use.load(Ordering::Acquire) > 0 {
            return None;
        }
        // SAFETY: leases are made only through this buffer, which is borrowed exclusively, and none exists now. The
        // memory belongs to the host, is initialised, and lives as long as the buffer, since it is not lent.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), *bytes) })
    }

    fn in_bytes(&self, elements: Range<usize>) -> Range<usize> {
        let size = self.dtype.size();
        elements.start.saturating_mul(size)..elements.end.saturating_mul(size)
    }
}

impl BufferMemory {
    /// Returns the same memory, written by `queue`.
    fn at(mut self, queue: &Queue) -> Self {
        let place = |queue: &Arc<dyn DeviceQueue>| DeviceOwner {
            queue: Arc::clone(queue),
            order: AccessOrder::default(),
        };
        self.place = queue.device().map(place).map(Box::new);
        self
    }
}

fn layout(dtype: DType, len: usize) -> Result<Layout> {
    let bytes = len.checked_mul(dtype.size());
    bytes.and_then(|bytes| Layout::from_size_align(bytes, ALIGNMENT).ok()).ok_or_else(|| {
        Error::usage(format!("{len} elements of {dtype} exceed the address space"), "use fewer")
    })
}

/// Type with a buffer's alignment, for the address of an empty one.
#[repr(align(64))]
struct Aligned;

#[cfg(test)]
mod tests;
