//! Pages of host memory that all ranks of an endpoint read and write, for words with which devices wait for each
//! other.

use crate::error::Result;
use crate::memory::Keeper;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::time::Duration;

/// Bytes of a page, and its alignment.
pub(crate) const PAGE: usize = 4096;

/// Pages of the ranks of one endpoint, one of each, in the memory of this process.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "no device of such a build has a path"))]
pub struct SharedPages {
    /// Addresses by rank.
    pub(crate) pages: Vec<NonNull<u8>>,
    /// Owner of the memory.
    pub(crate) keeper: Keeper,
}

/// Endpoint whose ranks share memory of the host.
pub trait SharedMemory {
    /// Returns a page of each rank, zeroed, which all ranks of the endpoint read and write, also those of other
    /// processes. All ranks call this once, at the same point; it waits for them at most `limit`.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if memory runs out, or a peer does not do the same.
    fn share_pages(&self, limit: Duration) -> Result<SharedPages>;
}

/// A zeroed page of the heap, for ranks that are threads.
pub(crate) struct Page(NonNull<u8>);

// SAFETY: the page is reached by atomic operations only, on any thread.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    const LAYOUT: Layout = match Layout::from_size_align(PAGE, PAGE) {
        Ok(layout) => layout,
        Err(_) => Layout::new::<u8>(),
    };

    /// Returns the address.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.0
    }
}

impl Default for Page {
    fn default() -> Self {
        // SAFETY: the layout has a size.
        let page = NonNull::new(unsafe { alloc_zeroed(Self::LAYOUT) });
        Page(page.unwrap_or_else(|| handle_alloc_error(Self::LAYOUT)))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.0.as_ptr(), Self::LAYOUT) };
    }
}
