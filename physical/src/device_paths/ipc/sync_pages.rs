//! Sync pages: the words by which streams of several ranks wait for each other. Each rank has a page in host memory, in
//! which every rank has a line.
//!
//! ```text
//! page of rank r   step:u32 mark:u32 sent:u32 taken:u32 of rank 0, the same of rank 1, …    each in a cache line of its own
//! ```
//!
//! | word | says of its rank | is in the pages of |
//! |---|---|---|
//! | step | steps of collectives that its streams have taken | all ranks |
//! | sent | messages to r that its streams have copied to where r finds them | r |
//! | taken | messages of r that its streams have read | r |
//! | mark | 1 once its host has released a stream early: its words are no longer valid | all ranks |
//!
//! In its own page, a rank's `step` and `taken` say how many steps and messages its streams are done with.
//!
//! A stream writes all words except the mark into the pages of other ranks, and waits only for words in its own rank's page. So
//! only its own rank can release it. All counts begin at 1, and a stream waits for a number or more, so that words never return
//! to zero.

use crate::device::cuda::enqueue::PathWork;
use crate::device::cuda::gpu::Gpu;
use crate::device::{SyncPoint, at};
use crate::error::Result;
use crate::memory::Keeper;
use crate::transport::SharedPages;
use crate::transport::pages::PAGE;
use cudarc::driver::sys::{self, CUstreamWaitValue_flags, CUstreamWriteValue_flags};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Makes a stream wait until the word minus the value, as a signed number, is at least 0.
const WAIT: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;

/// Makes a stream write a value after all its earlier writes.
const WRITE: u32 = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;

/// Bytes from one word to the next.
const LINE: usize = 64;

/// Offsets of the words in a line, in bytes.
const STEP: usize = 0;
const MARK: usize = 4;
const SENT: usize = 8;
const TAKEN: usize = 12;

/// Pages of this process that are pinned, by address: ranks that are threads share them.
static PINNED: Mutex<Option<HashMap<usize, Weak<PinnedPage>>>> = Mutex::new(None);

/// Words of the ranks of one endpoint.
pub(super) struct SyncPages {
    rank: usize,
    /// Pages of all ranks as the device reaches them, which keep them.
    pages: Vec<Arc<PinnedPage>>,
}

impl SyncPages {
    /// Makes the pages of all ranks accessible to a GPU.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    pub(super) fn new(gpu: &Arc<Gpu>, rank: usize, shared: SharedPages) -> Result<Self> {
        let SharedPages { pages, keeper } = shared;
        let pages = pages.into_iter().map(|page| {
            let mut pinned = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
            let pinned = pinned.get_or_insert_default();
            pinned.retain(|_, page| page.strong_count() > 0);
            if let Some(found) = pinned.get(&page.addr().get()).and_then(Weak::upgrade) {
                return Ok(found);
            }
            // SAFETY: the keeper owns the whole page.
            let page = Arc::new(unsafe { PinnedPage::new(gpu, page, Arc::clone(&keeper)) }?);
            pinned.insert(page.host.addr().get(), Arc::downgrade(&page));
            Ok(page)
        });
        Ok(SyncPages { rank, pages: pages.collect::<Result<_>>()? })
    }

    /// Returns a word of a rank in the page of this one.
    fn word(&self, rank: usize, word: usize) -> &AtomicU32 {
        self.pages[self.rank].word(rank, word)
    }

    /// Returns the number of steps that this rank has seen another take; for this rank itself, the number of steps that it is
    /// done with.
    pub(super) fn steps(&self, rank: usize) -> u32 {
        self.word(rank, STEP).load(Ordering::Acquire)
    }

    /// Returns the number of messages that a rank has sent to this one.
    pub(super) fn sent(&self, rank: usize) -> u32 {
        self.word(rank, SENT).load(Ordering::Acquire)
    }

    /// Returns the number of messages of this rank that another has taken; for this rank itself, the number of messages that it
    /// is done with.
    pub(super) fn taken(&self, rank: usize) -> u32 {
        self.word(rank, TAKEN).load(Ordering::Acquire)
    }

    /// Returns true if the words of some rank are no longer valid.
    pub(super) fn are_void(&self) -> bool {
        (0..self.pages.len()).any(|rank| self.word(rank, MARK).load(Ordering::Acquire) != 0)
    }

    /// Notifies all ranks, then releases the streams of this rank that wait for a step up to `step`, or for messages up to
    /// these of each rank.
    pub(super) fn release(&self, step: u32, messages: impl Fn(usize) -> u32) {
        self.pages.iter().for_each(|page| page.word(self.rank, MARK).store(1, Ordering::Release));
        self.peers().for_each(|rank| {
            self.word(rank, STEP).store(step, Ordering::Release);
            self.word(rank, SENT).store(messages(rank), Ordering::Release);
        });
    }

    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.pages.len()
    }

    /// Returns the ranks but this one.
    fn peers(&self) -> impl Iterator<Item = usize> {
        (0..self.pages.len()).filter(|rank| *rank != self.rank)
    }

    /// Makes a stream notify all ranks, including its own, that it has reached a step.
    pub(super) fn tell_step(&self, work: &PathWork<'_>, step: u32) -> Result<()> {
        (0..self.ranks()).try_for_each(|rank| self.write(work, rank, STEP, step))
    }

    /// Makes a stream notify its own host that it has reached a step.
    pub(super) fn note_step(&self, work: &PathWork<'_>, step: u32) -> Result<()> {
        self.write(work, self.rank, STEP, step)
    }

    /// Makes a stream notify a rank that this many messages to it are ready.
    pub(super) fn tell_sent(&self, work: &PathWork<'_>, to: usize, messages: u32) -> Result<()> {
        self.write(work, to, SENT, messages)
    }

    /// Makes a stream notify a rank that this many of its messages have been taken.
    pub(super) fn tell_taken(&self, work: &PathWork<'_>, from: usize, messages: u32) -> Result<()> {
        self.write(work, from, TAKEN, messages)
    }

    /// Makes a stream notify its own host of the number of messages that it has taken from all ranks together.
    pub(super) fn note_taken(&self, work: &PathWork<'_>, messages: u32) -> Result<()> {
        self.write(work, self.rank, TAKEN, messages)
    }

    /// Makes a stream wait at a sync point until all other ranks have reached a step.
    pub(super) fn await_step(&self, work: &PathWork<'_>, step: u32, place: SyncPoint) -> Result<()> {
        self.peers().try_for_each(|peer| at(place, || self.wait(work, peer, STEP, step)))
    }

    /// Makes a stream wait until this many messages of a rank are ready.
    pub(super) fn await_sent(&self, work: &PathWork<'_>, from: usize, messages: u32) -> Result<()> {
        at(SyncPoint::IpcMessage, || self.wait(work, from, SENT, messages))
    }

    /// Makes a stream write a word of this rank into the page of rank `to`.
    fn write(&self, work: &PathWork<'_>, to: usize, word: usize, value: u32) -> Result<()> {
        let word = self.pages[to].address + (self.rank * LINE + word) as u64;
        // SAFETY: the stream is valid, and its work keeps the page alive.
        let status = unsafe { sys::cuStreamWriteValue32_v2(work.stream().0, word, value, WRITE) };
        work.expect(status, "make a stream write a word")
    }

    /// Makes a stream wait until a word of rank `peer` in the page of this rank is `value` or more.
    fn wait(&self, work: &PathWork<'_>, peer: usize, word: usize, value: u32) -> Result<()> {
        let word = self.pages[self.rank].address + (peer * LINE + word) as u64;
        // SAFETY: as above.
        let status = unsafe { sys::cuStreamWaitValue32_v2(work.stream().0, word, value, WAIT) };
        work.expect(status, "make a stream wait for a word")
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
    /// Pins a page that is not yet pinned.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    ///
    /// # Safety
    /// The page is valid as long as `keeper` lives.
    unsafe fn new(gpu: &Arc<Gpu>, host: NonNull<u8>, keeper: Keeper) -> Result<Self> {
        let _current = gpu.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller guarantees that the page is valid.
        let status = unsafe { sys::cuMemHostRegister_v2(host.as_ptr().cast(), PAGE, flags) };
        gpu.expect(status, "pin host memory that ranks share")?;
        let mut page = PinnedPage { address: 0, host, gpu: Arc::clone(gpu), _keeper: keeper };
        // SAFETY: the pointer is valid for a write of one address, and the page is pinned.
        let status = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut page.address, host.as_ptr().cast(), 0) };
        gpu.expect(status, "find pinned host memory")?;
        Ok(page)
    }

    /// Returns a word of a rank.
    fn word(&self, rank: usize, word: usize) -> &AtomicU32 {
        // SAFETY: the page has a line for every rank, aligned, which is accessed only by atomic operations, and it lives as
        // long as this.
        unsafe { self.host.add(rank * LINE + word).cast().as_ref() }
    }
}

impl Drop for PinnedPage {
    fn drop(&mut self) {
        if let Ok(_current) = self.gpu.enter() {
            // SAFETY: it was pinned once, and no work uses it.
            unsafe { sys::cuMemHostUnregister(self.host.as_ptr().cast()) };
        }
    }
}

/// Returns true if a word has reached a number.
pub(super) fn has_come(word: u32, number: u32) -> bool {
    word.wrapping_sub(number) as i32 >= 0
}
