//! Places that batches are put in: the heap, or memory that the caller brings.
//!
//! The loader knows no GPU. `hexagram::Pinned` is such a [`Memory`].

use crate::dataset::Cause;
use bytemuck::{Pod, Zeroable};

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// A cache line: the unit in which a pool allocates, so that every buffer is aligned for any element and for
/// vector instructions.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);

// SAFETY: it is bytes, of which zeros are values.
unsafe impl Zeroable for Line {}
// SAFETY: it is bytes without padding, as its size is its alignment, and any are values.
unsafe impl Pod for Line {}

/// Source of memory for batches: PyTorch's `pin_memory`, but filled by the workers themselves.
///
/// Called by any worker; what it returns is used again and again, and dropped with the loader, or by whoever has the last
/// batch.
pub trait Memory: Send + Sync {
    /// Allocates `bytes` bytes, or more, at an address that is a multiple of 64, with any numbers in them.
    ///
    /// # Errors
    /// Whatever keeps it from that; the loader adds the worker.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Bytes>, Cause>;
}

/// Memory that somebody owns. It stays where it is.
pub trait Bytes: Send + Sync {
    /// Returns all bytes.
    fn bytes(&self) -> &[u8];

    /// Returns all bytes, to change them.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Bytes for Vec<Line> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

/// Whole cache lines.
pub(super) enum Room {
    Heap(Vec<Line>),
    Elsewhere { memory: Box<dyn Bytes>, lines: usize },
}

impl Default for Room {
    fn default() -> Self {
        Room::Heap(Vec::new())
    }
}

impl Room {
    pub(super) fn on_heap(lines: usize) -> Self {
        Room::Heap(vec![Line::zeroed(); lines])
    }

    /// Allocates so many lines there.
    ///
    /// # Errors
    /// The memory's own, or one that says that it has given too little, or at an odd address.
    pub(super) fn of(memory: &dyn Memory, lines: usize) -> Result<Self, Cause> {
        let wanted = lines * LINE;
        let memory = memory.allocate(wanted)?;
        let given = memory.bytes();
        if given.len() < wanted || !given.as_ptr().addr().is_multiple_of(LINE) {
            let at = given.as_ptr();
            return Err(format!("{} bytes at {at:p} are not {wanted} aligned to {LINE}", given.len()).into());
        }
        Ok(Room::Elsewhere { memory, lines })
    }

    pub(super) fn lines(&self) -> usize {
        match self {
            Room::Heap(lines) => lines.len(),
            Room::Elsewhere { lines, .. } => *lines,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Room::Heap(lines) => lines.bytes(),
            Room::Elsewhere { memory, .. } => memory.bytes(),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Room::Heap(lines) => lines.bytes_mut(),
            Room::Elsewhere { memory, .. } => memory.bytes_mut(),
        }
    }
}
