//! Counted memory: the buffers that transports read and write, and the only file in which that aliasing is unsafe.
//!
//! A transport may touch a buffer long after the call that posted the operation has returned, and even after the future
//! that stood for it was leaked. Borrowed slices cannot express that. So an operation holds a *view*: a counted lease on
//! a range of a [`Buffer`]. While a view lives, its memory lives, and the memory keeps a list of the ranges in use:
//! any number may read a range, or one may write it. A lease that would break this is refused with
//! [`Error::Busy`]; access from the program ([`Buffer::host`], [`Buffer::host_mut`]) is a lease like any other.

use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::stopwatch::Stopwatch;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Alignment of every buffer, in bytes: a cache line, and any SIMD register of today.
pub const ALIGNMENT: usize = 64;

/// How long [`Buffer::lend`] waits for the last view before it gives the process up.
const LEND_LIMIT: Duration = Duration::from_secs(30);

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

/// What the leases of one memory are, and whether new ones are given.
#[derive(Debug, Default)]
struct Ledger {
    leases: Vec<Lease>,
    /// Set when borrowed memory has gone back to its owner.
    revoked: bool,
}

enum Owner {
    Heap(Layout),
    /// The caller of `lend`; `writable` is false for `&[T]`.
    Lent {
        writable: bool,
    },
    /// A mapping that other processes have as well, kept by whatever this is.
    Shared {
        _keeper: Arc<dyn Any + Send + Sync>,
        registration: Registration,
    },
}

/// Which registered memory this is, to the endpoint that it was registered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registration {
    /// Unique within the process.
    pub(crate) endpoint: u64,
    /// Equal on all ranks.
    pub(crate) index: u32,
}

struct Memory {
    pointer: NonNull<u8>,
    bytes: usize,
    owner: Owner,
    ledger: Mutex<Ledger>,
    /// Leases in the ledger, written while it is held.
    in_use: AtomicUsize,
}

// SAFETY: the bytes are reached only through views, and the ledger keeps a writing view disjoint from every other view,
// whichever threads hold them.
unsafe impl Send for Memory {}
// SAFETY: as above; the ledger itself is behind a mutex.
unsafe impl Sync for Memory {}

impl Memory {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // The ledger is valid after every statement, so a panic elsewhere while it was held does not matter.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(self: &Arc<Self>, range: Range<usize>, access: Access) -> Result<Lent> {
        let Range { start, end } = range;
        if start > end || end > self.bytes {
            return Err(Error::usage(
                format!("bytes {start}..{end} are not within a buffer of {} bytes", self.bytes),
                "ask for a range inside the buffer",
            ));
        }
        if access == Access::Write && matches!(self.owner, Owner::Lent { writable: false }) {
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
        Ok(Lent { memory: Arc::clone(self), lease })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner
            && layout.size() > 0
        {
            // SAFETY: allocated in `Buffer::alloc` with this layout, and no view is left, as views hold an Arc.
            unsafe { dealloc(self.pointer.as_ptr(), layout) }
        }
    }
}

/// One entry of the ledger, given back on drop.
struct Lent {
    memory: Arc<Memory>,
    lease: Lease,
}

impl Lent {
    fn pointer(&self) -> *mut u8 {
        // SAFETY: `lease` checked that start is within the allocation (or one past its end).
        unsafe { self.memory.pointer.as_ptr().add(self.lease.start) }
    }

    fn len(&self) -> usize {
        self.lease.end - self.lease.start
    }

    #[cfg(feature = "mpi")]
    fn is_lent(&self) -> bool {
        matches!(self.memory.owner, Owner::Lent { .. })
    }

    fn registration(&self) -> Option<(Registration, usize)> {
        match self.memory.owner {
            Owner::Shared { registration, .. } => Some((registration, self.lease.start)),
            _ => None,
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut ledger = self.memory.ledger();
        let Lease { start, end, access } = self.lease;
        let entry = ledger.leases.iter().position(|l| l.start == start && l.end == end && l.access == access);
        if let Some(entry) = entry {
            ledger.leases.swap_remove(entry);
        }
        // Whoever sees that nothing is in use sees what was written through this lease.
        self.memory.in_use.store(ledger.leases.len(), Ordering::Release);
    }
}

/// A counted lease that allows reading a range of a buffer.
pub struct ReadView(Lent, DType);

impl ReadView {
    /// Whether its owner takes the memory back even from an operation that failed.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.1
    }

    /// Which registered memory it is of, and from which byte on.
    pub(crate) fn registration(&self) -> Option<(Registration, usize)> {
        self.0.registration()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.byte_len() / self.1.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes, which nobody writes while this view lives; `None` if they are not in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }

    /// The bytes, which nobody writes while this view lives.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the ledger admits no writing view that overlaps this one, and the memory is initialised.
        unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.len()) }
    }
}

/// A counted lease that allows reading and writing a range of a buffer.
pub struct WriteView(Lent, DType);

impl WriteView {
    /// Whether its owner takes the memory back even from an operation that failed.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.1
    }

    /// Which registered memory it is of, and from which byte on.
    pub(crate) fn registration(&self) -> Option<(Registration, usize)> {
        self.0.registration()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.byte_len() / self.1.size()
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }

    /// Returns the number of bytes.
    pub fn byte_len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes; `None` if they are not in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }

    /// Returns the bytes for writing; `None` if they are not in host memory.
    pub fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.bytes_mut())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the ledger admits no other view that overlaps this one, and `self` is borrowed for reading.
        unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.len()) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.len()) }
    }
}

/// A typed run of elements that operations can send from and receive into.
///
/// It owns its memory, except inside [`Buffer::lend`]. Dropping it while operations are in flight is fine: their views
/// keep the memory alive.
pub struct Buffer {
    memory: Arc<Memory>,
    dtype: DType,
    len: usize,
}

impl Buffer {
    /// Zeroed elements in host memory.
    ///
    /// # Errors
    /// [`Error::Usage`] if the size overflows the address space, [`Error::System`] if memory runs out.
    pub fn zeroed(dtype: DType, len: usize) -> Result<Self> {
        let layout = len
            .checked_mul(dtype.size())
            .and_then(|bytes| Layout::from_size_align(bytes, ALIGNMENT).ok())
            .ok_or_else(|| {
                Error::usage(format!("{len} elements of {dtype} exceed the address space"), "use fewer")
            })?;
        let pointer = if layout.size() == 0 {
            NonNull::<Aligned>::dangling().cast()
        } else {
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
                let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
                Error::system(format!("allocate {} bytes", layout.size()), cause, "use smaller buffers")
            })?
        };
        Ok(Self::over(pointer, layout.size(), Owner::Heap(layout), dtype, len))
    }

    /// A copy of `elements`.
    ///
    /// # Errors
    /// As [`Buffer::zeroed`].
    pub fn from_slice<T: Element>(elements: &[T]) -> Result<Self> {
        let buffer = Self::zeroed(T::DTYPE, elements.len())?;
        buffer.write(0..elements.len())?.bytes_mut().copy_from_slice(bytemuck::cast_slice(elements));
        Ok(buffer)
    }

    /// Memory that is shared with other processes, which only read it. `pointer` is that of `bytes` zeroed bytes, aligned
    /// to [`ALIGNMENT`], that live as long as `keeper`.
    ///
    /// # Safety
    /// As just said; and nobody in this process reaches the bytes but through the buffer.
    pub(crate) unsafe fn shared(
        pointer: NonNull<u8>,
        keeper: Arc<dyn Any + Send + Sync>,
        registration: Registration,
        dtype: DType,
        len: usize,
    ) -> Self {
        let owner = Owner::Shared { _keeper: keeper, registration };
        Self::over(pointer, len * dtype.size(), owner, dtype, len)
    }

    fn over(pointer: NonNull<u8>, bytes: usize, owner: Owner, dtype: DType, len: usize) -> Self {
        let memory = Memory { pointer, bytes, owner, ledger: Mutex::default(), in_use: AtomicUsize::new(0) };
        Buffer { memory: Arc::new(memory), dtype, len }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
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

    /// Returns all bytes, for writing, without a lease; `None` while an operation uses any of them, and of lent elements,
    /// whose owner waits for leases only.
    ///
    /// For operations that are over before the borrow is.
    pub fn idle_bytes(&mut self) -> Option<&mut [u8]> {
        let Memory { pointer, bytes, owner, in_use, .. } = &*self.memory;
        if in_use.load(Ordering::Acquire) > 0 || matches!(owner, Owner::Lent { .. }) {
            return None;
        }
        // SAFETY: leases are made only by way of this buffer, which is borrowed exclusively, and there is none now. The
        // memory is initialised, and lives as long as the buffer, as it is not lent.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), *bytes) })
    }

    fn in_bytes(&self, elements: Range<usize>) -> Range<usize> {
        let size = self.dtype.size();
        elements.start.saturating_mul(size)..elements.end.saturating_mul(size)
    }

    /// The elements, for the program to read.
    ///
    /// # Errors
    /// [`Error::Usage`] if `T` is not the element type, [`Error::Busy`] while an operation writes.
    pub fn host<T: Element>(&self) -> Result<Elements<'_, T>> {
        self.expect::<T>()?;
        Ok(Elements { view: self.read(0..self.len)?, elements: PhantomData })
    }

    /// The elements, for the program to change.
    ///
    /// # Errors
    /// [`Error::Usage`] if `T` is not the element type, [`Error::Busy`] while an operation is in flight.
    pub fn host_mut<T: Element>(&mut self) -> Result<ElementsMut<'_, T>> {
        self.expect::<T>()?;
        Ok(ElementsMut { view: self.write(0..self.len)?, elements: PhantomData })
    }

    fn expect<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        let what = format!("a buffer of {} was accessed as {}", self.dtype, T::DTYPE);
        Err(Error::usage(what, "use the buffer's own element type"))
    }

    /// Lets `work` use borrowed elements as a buffer that can be read, without a copy.
    ///
    /// Returns when no operation uses the elements any more, so that a late read can never reach freed memory.
    ///
    /// # Aborts
    /// The process ends if a view is still alive 30 s after `work` returned, which only a leaked operation can cause.
    pub fn lend<T: Element, R>(elements: &[T], work: impl FnOnce(&Buffer) -> R) -> R {
        Self::lent(NonNull::from(elements), false, |buffer| work(buffer))
    }

    /// Like [`Buffer::lend`], for elements that `work` may change.
    pub fn lend_mut<T: Element, R>(elements: &mut [T], work: impl FnOnce(&mut Buffer) -> R) -> R {
        Self::lent(NonNull::from(elements), true, work)
    }

    fn lent<T: Element, R>(elements: NonNull<[T]>, writable: bool, work: impl FnOnce(&mut Buffer) -> R) -> R {
        /// Takes the memory back even if `work` panics.
        struct Guard(Arc<Memory>);
        impl Drop for Guard {
            fn drop(&mut self) {
                take_back(&self.0);
            }
        }
        let bytes = elements.len() * size_of::<T>();
        let mut buffer =
            Self::over(elements.cast(), bytes, Owner::Lent { writable }, T::DTYPE, elements.len());
        let _guard = Guard(Arc::clone(&buffer.memory));
        work(&mut buffer)
    }
}

/// Type with a buffer's alignment, for the address of an empty one.
#[repr(align(64))]
struct Aligned;

/// Revokes borrowed memory: waits until no view is left and allows no new one.
fn take_back(memory: &Memory) {
    let mut waited = Stopwatch::start();
    loop {
        let mut ledger = memory.ledger();
        if ledger.leases.is_empty() {
            ledger.revoked = true;
            return;
        }
        drop(ledger);
        // A view outlives its operation only while another thread finishes one copy: brief, and there is nothing to
        // be woken by.
        if waited.elapsed() > LEND_LIMIT {
            eprintln!(
                "hexagram: a leaked operation still uses borrowed memory; aborting rather than corrupt it"
            );
            std::process::abort();
        }
        std::thread::yield_now();
    }
}

/// Elements of a buffer, open for reading.
pub struct Elements<'a, T> {
    view: ReadView,
    elements: PhantomData<&'a [T]>,
}

impl<T: Element> Deref for Elements<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.view.bytes())
    }
}

/// Elements of a buffer, open for changing.
pub struct ElementsMut<'a, T> {
    view: WriteView,
    elements: PhantomData<&'a mut [T]>,
}

impl<T: Element> Deref for ElementsMut<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.view.bytes())
    }
}

impl<T: Element> DerefMut for ElementsMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.view.bytes_mut())
    }
}

#[cfg(test)]
mod tests;
