//! Memory of batches: the heap, or memory from the caller.
//!
//! The loader has no GPU code. `hexagram::Pinned` is such a [`Memory`].

use crate::dataset::Cause;
use bytemuck::{Pod, Zeroable};

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// A cache line: the unit in which a pool allocates, so that every buffer is aligned for any element and for
/// vector instructions.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);

// SAFETY: it is an array of bytes, for which zeros are valid.
unsafe impl Zeroable for Line {}
// SAFETY: it is an array of bytes without padding, since its size is its alignment, and all byte values are valid.
unsafe impl Pod for Line {}

/// Source of memory for batches: PyTorch's `pin_memory`, but filled by the workers directly.
///
/// Called by any worker. The returned memory is reused, and dropped with the loader or with the last batch.
pub trait Memory: Send + Sync {
    /// Allocates at least `bytes` bytes with arbitrary contents, aligned to 64.
    ///
    /// # Errors
    /// Any error; the loader adds the worker.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Bytes>, Cause>;
}

/// Owned memory with a stable address.
pub trait Bytes: Send + Sync {
    /// Returns all bytes.
    fn bytes(&self) -> &[u8];

    /// Returns all bytes for writing.
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

    /// Allocates `lines` lines in `memory`.
    ///
    /// # Errors
    /// The error of the memory, or one for an allocation that is too small or misaligned.
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
