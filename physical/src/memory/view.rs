//! Views: counted leases on a range of a buffer.

use super::dtype::DType;
use super::{Access, Lease, LedgerEntry, Registration};
use crate::device::Queue;
use crate::memory::Span;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A counted lease that allows reading a range of a buffer.
pub struct ReadView(pub(super) LedgerEntry, pub(super) DType);

/// A counted lease that allows reading and writing a range of a buffer.
pub struct WriteView(pub(super) LedgerEntry, pub(super) DType);

impl ReadView {
    /// Returns true if the owner takes the memory back even from an operation that failed.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.1
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

    /// Returns true if the bytes are in host memory.
    pub fn is_on_host(&self) -> bool {
        self.0.place().is_none()
    }

    /// Returns the registered memory of the view, and its first byte in it.
    pub(crate) fn registration(&self) -> Option<(Registration, usize)> {
        self.0.registration()
    }

    /// Returns the bytes, which are not written while this view lives; `None` if they are not in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        if !self.is_on_host() {
            return None;
        }
        // SAFETY: the ledger admits no writing view that overlaps this one, and the memory is the host's and
        // initialised.
        Some(unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.len()) })
    }

    /// Returns the bytes of a view that is known to be in host memory, like all that reach a transport: its
    /// surrounding endpoint ensures that.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(self.is_on_host(), "a view of a device's memory gives no bytes");
        self.host_bytes().unwrap_or_default()
    }

    /// Returns another view of the same range.
    pub(crate) fn again(&self) -> ReadView {
        let memory = Arc::clone(&self.0.memory);
        let lease = self.0.lease;
        // Readers share the range, and this view excludes writers.
        let mut ledger = memory.ledger();
        ledger.leases.push(lease);
        memory.in_use.store(ledger.leases.len(), Ordering::Relaxed);
        drop(ledger);
        ReadView(LedgerEntry { memory, lease }, self.1)
    }

    /// Returns the view with its bytes as elements.
    pub fn into_bytes(self) -> ReadView {
        ReadView(self.0, DType::U8)
    }

    /// Narrows the view to its first bytes.
    pub(crate) fn into_first(mut self, bytes: usize) -> ReadView {
        let Lease { start, end, access } = self.0.lease;
        let lease = Lease { start, end: end.min(start + bytes), access };
        self.0.replace(lease);
        self
    }

    /// Returns the queue that writes this memory.
    pub(crate) fn queue(&self) -> Queue {
        self.span().queue()
    }

    pub(crate) fn span(&self) -> Span {
        Span::new(&self.0, self.1)
    }
}

impl WriteView {
    /// Returns true if the owner takes the memory back even from an operation that failed.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_lent(&self) -> bool {
        self.0.is_lent()
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        self.1
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

    /// Returns true if the bytes are in host memory.
    pub fn is_on_host(&self) -> bool {
        self.0.place().is_none()
    }

    /// Returns the registered memory of the view, and its first byte in it.
    pub(crate) fn registration(&self) -> Option<(Registration, usize)> {
        self.0.registration()
    }

    /// Returns the bytes; `None` if they are not in host memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        if !self.is_on_host() {
            return None;
        }
        // SAFETY: the ledger admits no other view that overlaps this one, `self` is borrowed for reading, and the
        // memory is the host's and initialised.
        Some(unsafe { std::slice::from_raw_parts(self.0.pointer(), self.0.len()) })
    }

    /// Returns the bytes for writing; `None` if they are not in host memory.
    pub fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_on_host() {
            return None;
        }
        // SAFETY: as above, and `self` is borrowed exclusively.
        Some(unsafe { std::slice::from_raw_parts_mut(self.0.pointer(), self.0.len()) })
    }

    /// Returns the bytes of a view that is known to be in host memory, like all that reach a transport: its
    /// surrounding endpoint ensures that.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(self.is_on_host(), "a view of a device's memory gives no bytes");
        self.host_bytes().unwrap_or_default()
    }

    /// Returns the bytes of a view that is known to be in host memory, for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_on_host(), "a view of a device's memory gives no bytes");
        self.host_bytes_mut().unwrap_or_default()
    }

    /// Returns the view with its bytes as elements.
    pub fn into_bytes(self) -> WriteView {
        WriteView(self.0, DType::U8)
    }

    /// Turns this into a view for reading.
    pub(crate) fn into_read(mut self) -> ReadView {
        let lease = Lease { access: Access::Read, ..self.0.lease };
        self.0.replace(lease);
        ReadView(self.0, self.1)
    }

    /// Returns the queue that writes this memory.
    pub(crate) fn queue(&self) -> Queue {
        self.span().queue()
    }

    pub(crate) fn span(&self) -> Span {
        Span::new(&self.0, self.1)
    }
}
