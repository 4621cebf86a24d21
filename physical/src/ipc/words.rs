//! The words by which streams of several ranks wait for each other: a page of each rank, in host memory, in which every
//! rank has a word.
//!
//! ```text
//! page of rank r   word:u32 mark:u32 of rank 0, word and mark of rank 1, …    those of a rank in a cache line of their own
//! ```
//!
//! A word is the number of steps that its rank's streams have taken. They write it into the pages of all others, and
//! wait for words in the page of their own rank only: nobody but their own rank can release them. Steps are numbered
//! alike on all ranks, and a stream waits for a number or more, so that words never go back to zero.
//!
//! A mark is 1 once the host of its rank has let a stream go on that still had to wait: from then on the steps of that rank
//! mean nothing. Hosts write and read it.

use crate::device::cuda::enqueue::PathWork;
use crate::device::cuda::gpu::Gpu;
use crate::device::cuda::types::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CU_STREAM_WAIT_VALUE_GEQ,
    CU_STREAM_WRITE_VALUE_DEFAULT,
};
use crate::error::Result;
use crate::memory::Keeper;
use crate::transport::SharedPages;
use crate::transport::pages::PAGE;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes from one word to the next.
const LINE: usize = 64;

/// Byte of a line at which the mark is.
const MARK: usize = 4;

/// Pages of this process that are pinned, by address: ranks that are threads share them.
static PINNED: Mutex<Option<HashMap<usize, Weak<PinnedPage>>>> = Mutex::new(None);

/// Words of the ranks of one endpoint.
pub(super) struct Words {
    rank: usize,
    /// Page of this rank.
    own: NonNull<u8>,
    /// Pages of all ranks as the device reaches them, which keep them.
    pages: Vec<Arc<PinnedPage>>,
}

// SAFETY: pages are reached by atomic operations, on any thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Lets a GPU reach the pages of all ranks.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    pub(super) fn new(gpu: &Arc<Gpu>, rank: usize, shared: SharedPages) -> Result<Self> {
        let SharedPages { pages, keeper } = shared;
        let own = pages[rank];
        let pages = pages.into_iter().map(|page| {
            let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
            let pinned = pinned.get_or_insert_default();
            pinned.retain(|_, page| page.strong_count() > 0);
            if let Some(found) = pinned.get(&page.addr().get()).and_then(Weak::upgrade) {
                return Ok(found);
            }
            // SAFETY: the keeper has the page, which is whole.
            let page = Arc::new(unsafe { PinnedPage::new(gpu, page, Arc::clone(&keeper)) }?);
            pinned.insert(page.host.addr().get(), Arc::downgrade(&page));
            Ok(page)
        });
        Ok(Words { rank, own, pages: pages.collect::<Result<_>>()? })
    }

    /// Returns the word of a rank in the page of this one.
    fn word(&self, rank: usize) -> &AtomicU32 {
        // SAFETY: the page has a word for every rank, aligned, which nobody reaches otherwise than by atomic operations,
        // and it lives as long as this.
        unsafe { self.own.add(rank * LINE).cast().as_ref() }
    }

    /// Returns the number of steps that this rank has seen another take; of itself, the steps it is done with.
    pub(super) fn seen(&self, rank: usize) -> u32 {
        self.word(rank).load(Ordering::Acquire)
    }

    /// Returns true if the steps of some rank mean nothing any more.
    pub(super) fn are_void(&self) -> bool {
        (0..self.pages.len()).any(|rank| self.pages[self.rank].mark(rank).load(Ordering::Acquire) != 0)
    }

    /// Lets streams of this rank go on that wait for a step up to `step`, and tells all ranks before.
    pub(super) fn release(&self, step: u32) {
        self.pages.iter().for_each(|page| page.mark(self.rank).store(1, Ordering::Release));
        self.peers().for_each(|rank| self.word(rank).store(step, Ordering::Release));
    }

    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.pages.len()
    }

    /// Returns the ranks but this one.
    fn peers(&self) -> impl Iterator<Item = usize> {
        (0..self.pages.len()).filter(|rank| *rank != self.rank)
    }

    /// Lets a stream tell all ranks, its own among them, that it has come to a step.
    pub(super) fn tell(&self, work: &PathWork<'_>, step: u32) -> Result<()> {
        self.pages.iter().try_for_each(|page| self.tell_in(work, page, step))
    }

    /// Lets a stream tell the own host that it has come to a step.
    pub(super) fn note(&self, work: &PathWork<'_>, step: u32) -> Result<()> {
        self.tell_in(work, &self.pages[self.rank], step)
    }

    fn tell_in(&self, work: &PathWork<'_>, page: &PinnedPage, step: u32) -> Result<()> {
        let write = work.driver().sharing()?.cuStreamWriteValue32_v2;
        let word = page.address + (self.rank * LINE) as u64;
        // SAFETY: the stream is there, and its work keeps the page.
        let status = unsafe { write(work.stream(), word, step, CU_STREAM_WRITE_VALUE_DEFAULT) };
        work.expect(status, "let a stream write a word")
    }

    /// Lets a stream wait until all others have come to a step.
    pub(super) fn wait(&self, work: &PathWork<'_>, step: u32) -> Result<()> {
        let wait = work.driver().sharing()?.cuStreamWaitValue32_v2;
        self.peers().try_for_each(|peer| {
            let word = self.pages[self.rank].address + (peer * LINE) as u64;
            // SAFETY: as above.
            let status = unsafe { wait(work.stream(), word, step, CU_STREAM_WAIT_VALUE_GEQ) };
            work.expect(status, "let a stream wait for a word")
        })
    }
}

/// A page of host memory that streams read and write as long as this lives.
struct PinnedPage {
    /// Address to the device.
    address: u64,
    host: NonNull<u8>,
    gpu: Arc<Gpu>,
    _keeper: Keeper,
}

// SAFETY: nothing follows the address but the driver, on any thread.
unsafe impl Send for PinnedPage {}
// SAFETY: as above.
unsafe impl Sync for PinnedPage {}

impl PinnedPage {
    /// Pins a page, which nobody else has pinned.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    ///
    /// # Safety
    /// The page is there as long as `keeper` lives.
    unsafe fn new(gpu: &Arc<Gpu>, host: NonNull<u8>, keeper: Keeper) -> Result<Self> {
        let sharing = gpu.driver.sharing()?;
        let _current = gpu.enter()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller has said that the page is there.
        let status = unsafe { (sharing.cuMemHostRegister_v2)(host.as_ptr().cast(), PAGE, flags) };
        gpu.expect(status, "pin host memory that ranks share")?;
        let mut page = PinnedPage { address: 0, host, gpu: Arc::clone(gpu), _keeper: keeper };
        // SAFETY: the place is there for one address, and the page is pinned.
        let status =
            unsafe { (sharing.cuMemHostGetDevicePointer_v2)(&mut page.address, host.as_ptr().cast(), 0) };
        gpu.expect(status, "find pinned host memory")?;
        Ok(page)
    }

    /// Returns the mark of a rank.
    fn mark(&self, rank: usize) -> &AtomicU32 {
        // SAFETY: the page has a line for every rank, aligned, which nobody reaches otherwise than by atomic operations,
        // and it lives as long as this.
        unsafe { self.host.add(rank * LINE + MARK).cast().as_ref() }
    }
}

impl Drop for PinnedPage {
    fn drop(&mut self) {
        if let (Ok(sharing), Ok(_current)) = (self.gpu.driver.sharing(), self.gpu.enter()) {
            // SAFETY: it was pinned once, and no work uses it any more.
            unsafe { (sharing.cuMemHostUnregister)(self.host.as_ptr().cast()) };
        }
    }
}

/// Returns true if a word that counts steps has come to `step`.
pub(super) fn has_come(word: u32, step: u32) -> bool {
    word.wrapping_sub(step) as i32 >= 0
}
