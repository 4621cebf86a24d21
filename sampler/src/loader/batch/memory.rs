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
pub(super) struct CacheLine([u8; LINE]);

// SAFETY: it is an array of bytes, for which zeros are valid.
unsafe impl Zeroable for CacheLine {}
// SAFETY: it is an array of bytes without padding, since its size is its alignment, and all byte values are valid.
unsafe impl Pod for CacheLine {}

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

impl Bytes for Vec<CacheLine> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

/// Whole cache lines.
pub(super) enum CacheLines {
    Heap(Vec<CacheLine>),
    Elsewhere { memory: Box<dyn Bytes>, lines: usize },
}

impl Default for CacheLines {
    fn default() -> Self {
        CacheLines::Heap(Vec::new())
    }
}

impl CacheLines {
    pub(super) fn on_heap(lines: usize) -> Self {
        CacheLines::Heap(vec![CacheLine::zeroed(); lines])
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
        Ok(CacheLines::Elsewhere { memory, lines })
    }

    pub(crate) fn lines(&self) -> usize {
        match self {
            CacheLines::Heap(lines) => lines.len(),
            CacheLines::Elsewhere { lines, .. } => *lines,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            CacheLines::Heap(lines) => lines.bytes(),
            CacheLines::Elsewhere { memory, .. } => memory.bytes(),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            CacheLines::Heap(lines) => lines.bytes_mut(),
            CacheLines::Elsewhere { memory, .. } => memory.bytes_mut(),
        }
    }
}
