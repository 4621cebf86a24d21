//! The shared memory of one rank: a segment with a doorbell, a control block and rings.
//!
//! ```text
//! segment  = head bytes × (ranks − 1)
//! head     = bell (parked core) proof control block counters × (ranks − 1) stage
//! counters = head tail blocked
//! counters, bytes                            a ring: written by one peer, read by the owner of the segment
//! control block, stage                       written by the owner, read by all ranks: see `control_block`, `staged`
//! ```
//!
//! A peer maps the head, and of the rings only the one into which it writes. The sizes are in `shape`.

pub(super) mod descriptors;
pub(super) mod memory_limits;
pub(super) mod region;
pub(super) mod registered;
pub(super) mod registration;
pub(super) mod reserve;
pub(super) mod shape;

use super::bytes;
use super::bytes::SharedBytes;
use super::control_block::{CONTROL_BLOCK, ControlBlock, ControlMemory};
use super::park::{ParkMode, Parker};
use super::ring::{ByteRing, RingMemory};
use crate::bootstrap::random;
use crate::error::{Error, Result};
use crate::system::limits;
use crate::transport::Bell;
use crate::waiting::doorbell::{Doorbell, timespec};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::futex;
use shape::{COUNTERS, SegmentShape};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Two cache lines: adjacent-line prefetch would otherwise couple the two sides.
pub(super) const LINE_PAIR: usize = 128;

const BELL: usize = 0;
const PARKED: usize = LINE_PAIR;
/// Offset of the core, next to the word that is read by all ranks that may have to wake this one; it changes as
/// rarely.
const CORE: usize = PARKED + 8;
const PROOF: usize = 2 * LINE_PAIR;

const HEAD: usize = 0;
const TAIL: usize = LINE_PAIR;
const BLOCKED: usize = 2 * LINE_PAIR;

/// Random number that only a process can read which has mapped the segment.
pub(super) type Proof = [u8; 16];

/// Segment of one rank, mapped.
pub(crate) struct Segment {
    head: MmapRaw,
    rings: RingMaps,
    shape: SegmentShape,
    /// Place of the owner among the ranks of its host.
    place: usize,
    /// Eventfd of the owner.
    waker: Arc<Doorbell>,
}

/// Ring bytes that are mapped by this process.
enum RingMaps {
    /// All rings: the owner reads from all of them.
    All(MmapRaw),
    /// The ring of the rank at this place, a peer, which writes into it.
    Of(usize, MmapRaw),
}

/// Creates anonymous shared memory of `size` bytes, and maps it by `map`. It is reserved, so that missing memory is
/// an error here and not a SIGBUS at the first access, and sealed, so that a peer cannot truncate it.
pub(super) fn reserve<T>(size: usize, map: impl FnOnce(&OwnedFd) -> io::Result<T>) -> Result<(OwnedFd, T)> {
    let make = || -> io::Result<(OwnedFd, T)> {
        limits::check_file_size(size as u64)?;
        let file = rustix::fs::memfd_create("hexagram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        reserve::reserve(&file, size as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = map(&file)?;
        Ok((file, map))
    };
    make().map_err(|cause| {
        let doing = format!("reserve {} KiB of shared memory", size / 1024);
        let remedy = "use smaller buffers, free memory, raise the memory limit of the container, or use the tcp transport";
        Error::system(doing, cause, remedy)
    })
}

/// Checks that a file is shared memory of `size` bytes made by [`reserve()`], here or in a peer.
pub(super) fn check(file: &OwnedFd, size: usize) -> io::Result<()> {
    let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
    if !sealed || rustix::fs::fstat(file)?.st_size != size as i64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not the shared memory that was announced"));
    }
    Ok(())
}

/// Maps `len` bytes of checked shared memory, populated, so that page faults do not delay the first operations.
pub(super) fn map(file: &OwnedFd, offset: usize, len: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().offset(offset as u64).len(len).populate().map_raw(file)
}

impl Segment {
    /// Creates the segment of the rank at `place` among `ranks`. Returns it with the file that the peers map. `waker`
    /// wakes the rank while it waits for descriptors.
    pub(super) fn create(ranks: usize, place: usize, waker: Arc<Doorbell>) -> Result<(Arc<Self>, OwnedFd)> {
        let shape = SegmentShape::new(ranks);
        let maps = |file: &OwnedFd| {
            let head = map(file, 0, shape.head())?;
            Ok((head, RingMaps::All(map(file, shape.head(), shape.rings())?)))
        };
        let (file, (head, rings)) = reserve(shape.segment(), maps)?;
        let segment = Segment { head, rings, shape, place, waker };
        let proof: Proof = random().map_err(Error::no_random)?;
        let proof = u128::from_le_bytes(proof);
        segment.atomic(PROOF).store(proof as u64, Ordering::Release);
        segment.atomic(PROOF + 8).store((proof >> 64) as u64, Ordering::Release);
        Ok((Arc::new(segment), file))
    }

    /// Maps the segment that the rank at `place` created, for the rank at `writer`.
    pub(super) fn map(
        file: &OwnedFd,
        ranks: usize,
        place: usize,
        writer: usize,
        waker: Arc<Doorbell>,
    ) -> io::Result<Arc<Self>> {
        let shape = SegmentShape::new(ranks);
        check(file, shape.segment())?;
        let head = map(file, 0, shape.head())?;
        let offset = shape.head() + ring_index(place, writer) * shape.ring;
        let rings = RingMaps::Of(writer, map(file, offset, shape.ring)?);
        Ok(Arc::new(Segment { head, rings, shape, place, waker }))
    }

    /// Reads the number which proves that this process has mapped the same memory as the owner.
    pub(super) fn proof(&self) -> Proof {
        let [low, high] = [PROOF, PROOF + 8].map(|at| u128::from(self.atomic(at).load(Ordering::Acquire)));
        (high << 64 | low).to_le_bytes()
    }

    /// Returns the sizes of the segment's parts.
    pub(super) fn shape(&self) -> SegmentShape {
        self.shape
    }

    /// Returns the 32-bit atomic at `offset` of the head.
    fn futex_word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.head.len());
        // SAFETY: in bounds and aligned (offsets are multiples of APART, and a mapping begins at a page); all processes access
        // this memory only atomically.
        unsafe { AtomicU32::from_ptr(self.head.as_mut_ptr().add(offset).cast()) }
    }

    /// Returns the place of the owner among the ranks of its host.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// Returns the 64-bit atomic at `offset` of the head.
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.head.len());
        // SAFETY: as `futex_word`.
        unsafe { AtomicU64::from_ptr(self.head.as_mut_ptr().add(offset).cast()) }
    }

    /// Returns the ring into which `sender` writes. The owner has all rings mapped, a peer only its own.
    pub(super) fn ring_of(&self, sender: usize) -> ByteRing<MappedRing<'_>> {
        assert!(sender < self.shape.ranks && sender != self.place, "a segment has one ring for each peer");
        let index = ring_index(self.place, sender);
        let bytes = match &self.rings {
            RingMaps::All(map) => map.as_mut_ptr().wrapping_add(index * self.shape.ring),
            RingMaps::Of(writer, map) => {
                assert!(*writer == sender, "a peer writes into its own ring");
                map.as_mut_ptr()
            }
        };
        ByteRing(MappedRing { segment: self, counters: self.shape.counters() + index * COUNTERS, bytes })
    }

    /// Returns the owner's control block.
    pub(super) fn control_block(&self) -> ControlBlock<'_, Self> {
        ControlBlock::new(self)
    }

    /// Returns the address of `len` bytes of the control block from `offset` on.
    fn control_address(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= CONTROL_BLOCK, "within the control block");
        self.head.as_mut_ptr().wrapping_add(self.shape.control_block() + offset)
    }

    /// Returns bytes of the control block.
    pub(super) fn control_bytes(&self, offset: usize, len: usize) -> SharedBytes<'_> {
        // SAFETY: within the control block, as `control_address` checked; all processes write it by `store` and atomics
        // only.
        unsafe { SharedBytes::new(self.control_address(offset, len), len) }
    }

    /// Returns the address of `len` bytes of the stage from `at` on.
    fn stage(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= 2 * self.shape.half(), "within the stage");
        self.head.as_mut_ptr().wrapping_add(self.shape.stage() + at)
    }

    /// Copies bytes to the stage of this rank, which no rank reads now (see `staged`), except ranks that have not yet
    /// detected a withdrawal and whose reads are then void.
    pub(super) fn stage_store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: within the stage, as `stage` checked.
        unsafe { bytes::store(bytes, self.stage(at, bytes.len())) }
    }

    /// Returns bytes on a peer's stage, which the peer does not write now (see `staged`) unless it gives the operation
    /// up.
    pub(super) fn stage_bytes(&self, at: usize, len: usize) -> SharedBytes<'_> {
        // SAFETY: as above; all processes write it by `store` only.
        unsafe { SharedBytes::new(self.stage(at, len), len) }
    }

    /// Returns the owner's bell and parked word.
    fn parker(&self) -> Parker<'_, AtomicU32> {
        Parker { bell: self.futex_word(BELL), parked: self.futex_word(PARKED) }
    }

    /// Returns the count of the bell, which rises with every ring.
    pub(super) fn bell_count(&self) -> u32 {
        self.futex_word(BELL).load(Ordering::Acquire)
    }

    /// Publishes the core of the owner.
    pub(super) fn show_core(&self, core: u32) {
        let known = self.futex_word(CORE);
        let shown = core.wrapping_add(1);
        if known.load(Ordering::Relaxed) != shown {
            known.store(shown, Ordering::Relaxed);
        }
    }

    /// Returns the core of the rank when it last waited for longer, or `None` before that.
    pub(super) fn core(&self) -> Option<u32> {
        self.futex_word(CORE).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Announces that the owner is about to sleep: see [`Parker::announce_park`].
    pub(super) fn announce_park(&self, how: ParkMode) {
        self.parker().announce_park(how);
    }

    /// Reverts [`Segment::announce_park`].
    pub(super) fn end_park(&self) {
        self.parker().end_park();
    }

    /// Sleeps on the futex until the bell rings, for at most `at_most`. Returns immediately if it has rung since
    /// `bell_count` was read.
    pub(super) fn park(&self, bell_count: u32, at_most: Duration) {
        let timeout = timespec(at_most);
        // Whatever ends the wait, the caller looks for work and may park again: no outcome is an error.
        let _ = futex::wait(self.futex_word(BELL), futex::Flags::empty(), bell_count, Some(&timeout));
    }

    /// Wakes the owner if it is parked. Called after publishing work for it.
    pub(super) fn unpark(&self) {
        Self::fence_before_unpark();
        self.unpark_if_parked();
    }

    /// Executes the first half of [`Segment::unpark`], once for any number of segments.
    pub(super) fn fence_before_unpark() {
        Parker::<AtomicU32>::fence_before_unpark();
    }

    /// Executes the second half of [`Segment::unpark`].
    pub(super) fn unpark_if_parked(&self) {
        match self.parker().unpark() {
            None => {}
            Some(ParkMode::Futex) => self.wake(),
            Some(ParkMode::Descriptor) => self.waker.ring(),
        }
    }

    /// Wakes all threads that sleep on the futex.
    fn wake(&self) {
        let _ = futex::wake(self.futex_word(BELL), futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl ControlMemory for Segment {
    type Atomic = AtomicU64;

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset < CONTROL_BLOCK, "within the control block");
        Segment::atomic(self, self.shape.control_block() + offset)
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: within the control block, as `control_address` checked.
        unsafe { bytes::store(bytes, self.control_address(offset, bytes.len())) }
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        self.control_bytes(offset, into.len()).load(into);
    }
}

impl Bell for Segment {
    fn ring(&self) {
        // Counted even without a sleeping thread, so that it ends the next sleep.
        self.futex_word(BELL).fetch_add(1, Ordering::SeqCst);
        self.wake();
        self.waker.ring();
    }
}

/// Returns the index of the ring into which `sender` writes. The owner, at `place`, has none.
fn ring_index(place: usize, sender: usize) -> usize {
    sender - usize::from(sender > place)
}

/// Parts of a segment that form one ring.
pub(super) struct MappedRing<'a> {
    segment: &'a Segment,
    /// Offset of the ring's counters.
    counters: usize,
    /// Address of the ring's bytes.
    bytes: *mut u8,
}

impl RingMemory for MappedRing<'_> {
    type Atomic = AtomicU64;

    fn head(&self) -> &AtomicU64 {
        self.segment.atomic(self.counters + HEAD)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.atomic(self.counters + TAIL)
    }

    fn blocked(&self) -> &AtomicU64 {
        self.segment.atomic(self.counters + BLOCKED)
    }

    fn capacity(&self) -> usize {
        self.segment.shape.ring
    }

    fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.capacity(), "a run lies within the ring");
        // SAFETY: within the bytes of the ring, as just checked; the reader does not access them, see `RingMemory`.
        unsafe { self.bytes.add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.capacity(), "a run lies within the ring");
        // SAFETY: as above; the writer does not touch them.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.bytes.add(offset), into.len()) }
    }
}
