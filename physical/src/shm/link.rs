//! What lies between two processes of one host: a segment of shared memory with a doorbell, a board and rings.
//!
//! ```text
//! segment = bell asleep board ring × ranks stage
//! ring    = head tail blocked bytes          written by one peer, read by the segment's rank
//! board, stage                               written by the segment's rank, read by everyone: see `board`, `staged`
//! ```

use super::bed::{Bed, Sleep};
use super::board::{BOARD, Board, Page};
use super::ring::{Place, Ring};
use super::room;
use crate::doorbell::{Doorbell, timespec};
use crate::error::{Error, Result};
use crate::transport::Bell;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::futex;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes in flight from one rank to another; a few rings fit into the second-level cache.
const CAPACITY: usize = 256 * 1024;
/// Two cache lines: adjacent-line prefetch would otherwise tie the two sides together.
pub(super) const APART: usize = 128;

/// Bytes of a stage; those of a few ranks fit into a shared cache.
pub(super) const STAGE: usize = 1 << 20;

const BELL: usize = 0;
const ASLEEP: usize = APART;
const LANES: usize = 2 * APART;
const RINGS: usize = LANES + BOARD;

const HEAD: usize = 0;
const TAIL: usize = APART;
const BLOCKED: usize = 2 * APART;
const BYTES: usize = 3 * APART;
const STRIDE: usize = BYTES + CAPACITY;

/// One rank's segment, mapped.
pub(crate) struct Segment {
    map: MmapRaw,
    ranks: usize,
    /// The rank's eventfd.
    waker: Arc<Doorbell>,
}

/// Shared memory of `size` bytes that no file system has a name for: reserved, so that memory which cannot be had is an
/// error here and not a SIGBUS at first touch, and sealed, so that no peer can take it away.
pub(super) fn reserve(size: usize) -> Result<(OwnedFd, MmapRaw)> {
    let make = || -> io::Result<(OwnedFd, MmapRaw)> {
        let file = rustix::fs::memfd_create("hexagram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        room::take(&file, size as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = map(&file, size)?;
        Ok((file, map))
    };
    make().map_err(|cause| {
        let doing = format!("reserve {} KiB of shared memory", size / 1024);
        let remedy = "use smaller buffers, free memory, raise the memory limit of the container, or use the tcp transport";
        Error::system(doing, cause, remedy)
    })
}

/// Maps shared memory that was made by [`reserve`], here or in a peer.
pub(super) fn map(file: &OwnedFd, size: usize) -> io::Result<MmapRaw> {
    let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
    if !sealed || rustix::fs::fstat(file)?.st_size != size as i64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not the shared memory that was announced"));
    }
    // Populated, so that page faults do not disturb the first operations.
    MmapOptions::new().len(size).populate().map_raw(file)
}

impl Segment {
    fn size(ranks: usize) -> usize {
        RINGS + ranks * STRIDE + STAGE
    }

    /// A new segment into which `ranks` ranks can write, and the file that others map it from. `waker` ends a sleep in
    /// which the rank waits for descriptors.
    pub(super) fn create(ranks: usize, waker: Arc<Doorbell>) -> Result<(Arc<Self>, OwnedFd)> {
        let size = Self::size(ranks);
        let (file, map) = reserve(size)?;
        Ok((Arc::new(Segment { map, ranks, waker }), file))
    }

    /// Maps a segment that another rank created.
    pub(super) fn map(file: &OwnedFd, ranks: usize, waker: Arc<Doorbell>) -> io::Result<Arc<Self>> {
        let map = map(file, Self::size(ranks))?;
        Ok(Arc::new(Segment { map, ranks, waker }))
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.map.len());
        // SAFETY: in bounds and aligned (offsets are multiples of APART, the map of a page); shared memory that all
        // processes access only atomically.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    fn count(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len());
        // SAFETY: as `word`.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    /// The ring into which `sender` writes.
    pub(super) fn ring_of(&self, sender: usize) -> Ring<Stretch<'_>> {
        assert!(sender < self.ranks, "a segment has one ring a rank");
        Ring(Stretch { segment: self, at: RINGS + sender * STRIDE })
    }

    /// What the segment's rank tells everyone.
    pub(super) fn board(&self) -> Board<'_, Self> {
        Board::new(self)
    }

    /// Address of the board's bytes from `offset` on, `len` of which are inside it.
    fn board_bytes(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= BOARD, "within the board");
        self.map.as_mut_ptr().wrapping_add(LANES + offset)
    }

    fn stage(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= STAGE, "within the stage");
        self.map.as_mut_ptr().wrapping_add(RINGS + self.ranks * STRIDE + at)
    }

    /// Copies bytes to this rank's stage. Nobody reads them now: see `staged`.
    pub(super) fn stage_store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: within the stage, as `stage` checked; the counters of the board keep everyone else away.
        unsafe { self.stage(at, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Bytes on a peer's stage, which it does not write now: see `staged`.
    pub(super) fn stage_bytes(&self, at: usize, len: usize) -> &[u8] {
        // SAFETY: as above; should the peer break the order, these are numbers of an operation that fails.
        unsafe { std::slice::from_raw_parts(self.stage(at, len), len) }
    }

    fn bed(&self) -> Bed<'_, AtomicU32> {
        Bed { bell: self.word(BELL), asleep: self.word(ASLEEP) }
    }

    /// The bell's count, which rises whenever somebody rings.
    pub(super) fn heard(&self) -> u32 {
        self.word(BELL).load(Ordering::Acquire)
    }

    /// Announces sleep: see [`Bed::lie_down`].
    pub(super) fn lie_down(&self, how: Sleep) {
        self.bed().lie_down(how);
    }

    /// Ends what [`Segment::lie_down`] began.
    pub(super) fn get_up(&self) {
        self.bed().get_up();
    }

    /// Sleeps on the futex unless the bell has rung since `heard`, until it does or the time is over.
    pub(super) fn sleep(&self, heard: u32, at_most: Duration) {
        let timeout = timespec(at_most);
        // Whatever ends the wait, the caller looks for work and may come back: no outcome is an error.
        let _ = futex::wait(self.word(BELL), futex::Flags::empty(), heard, Some(&timeout));
    }

    /// Wakes the rank if it sleeps; called after giving it work.
    pub(super) fn nudge(&self) {
        match self.bed().nudge() {
            None => {}
            Some(Sleep::Futex) => self.wake(),
            Some(Sleep::Descriptor) => self.waker.ring(),
        }
    }

    fn wake(&self) {
        let _ = futex::wake(self.word(BELL), futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Page for Segment {
    type Count = AtomicU64;

    fn count(&self, offset: usize) -> &AtomicU64 {
        assert!(offset < BOARD, "within the board");
        Segment::count(self, LANES + offset)
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: within the board, as `board_bytes` checked; nobody reads them now, as `Page` says.
        unsafe { self.board_bytes(offset, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: as above; nobody writes them now.
        unsafe { std::slice::from_raw_parts(self.board_bytes(offset, len), len) }
    }

    fn glance(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: within the board. Another process may write meanwhile; any bytes are a valid array.
        unsafe { self.board_bytes(offset, into.len()).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }
}

impl Bell for Segment {
    fn ring(&self) {
        // Counted in any case, so that it ends the next sleep if there is none now.
        self.word(BELL).fetch_add(1, Ordering::SeqCst);
        self.wake();
        self.waker.ring();
    }
}

/// The part of a segment that one ring takes.
pub(super) struct Stretch<'a> {
    segment: &'a Segment,
    /// Offset of its head.
    at: usize,
}

impl Stretch<'_> {
    fn bytes(&self) -> *mut u8 {
        self.segment.map.as_mut_ptr().wrapping_add(self.at + BYTES)
    }
}

impl Place for Stretch<'_> {
    type Count = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        self.segment.count(self.at + HEAD)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.count(self.at + TAIL)
    }

    fn blocked(&self) -> &AtomicU64 {
        self.segment.count(self.at + BLOCKED)
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= CAPACITY, "a run lies within the ring");
        // SAFETY: within the ring's bytes, as just checked; the reader does not look at them, as `Place` says.
        unsafe { self.bytes().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= CAPACITY, "a run lies within the ring");
        // SAFETY: as above; the writer does not touch them.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.bytes().add(offset), into.len()) }
    }
}
