//! What lies between two processes of one host: a segment of shared memory with a doorbell, a board and rings.
//!
//! ```text
//! segment  = head bytes × (ranks − 1)
//! head     = bell (asleep core) proof board counters × (ranks − 1) stage
//! counters = head tail blocked
//! counters, bytes                            a ring: written by one peer, read by the segment's rank
//! board, stage                               written by the segment's rank, read by everyone: see `control_block`, `staged`
//! ```
//!
//! A peer maps the head, and of the rings only that into which it writes. Sizes are in `shape`.

use super::bytes::{self, SharedBytes};
use super::control_block::{CONTROL_BLOCK, ControlBlock, ControlMemory};
use super::park::{ParkMode, Parker};
use super::reserve;
use super::ring::{Ring, RingMemory};
use super::shape::{COUNTERS, Shape};
use crate::bootstrap::random;
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

/// Two cache lines: adjacent-line prefetch would otherwise tie the two sides together.
pub(super) const LINE_PAIR: usize = 128;

const BELL: usize = 0;
const PARKED: usize = LINE_PAIR;
/// Beside the word that everyone reads who may have to wake the rank; it changes as seldom.
const CORE: usize = PARKED + 8;
const PROOF: usize = 2 * LINE_PAIR;

const HEAD: usize = 0;
const TAIL: usize = LINE_PAIR;
const BLOCKED: usize = 2 * LINE_PAIR;

/// What only those can read who have a segment's memory mapped.
pub(super) type Proof = [u8; 16];

/// One rank's segment, mapped.
pub(crate) struct Segment {
    head: MmapRaw,
    rings: RingMaps,
    shape: Shape,
    /// The place of the segment's rank among those of its host.
    place: usize,
    /// The rank's eventfd.
    waker: Arc<Doorbell>,
}

/// The bytes of rings, as far as they are mapped here.
enum RingMaps {
    /// The segment's own rank reads from all of them.
    All(MmapRaw),
    /// A peer writes into one, that of this place.
    Of(usize, MmapRaw),
}

/// Shared memory of `size` bytes that no file system has a name for: reserved, so that memory which cannot be had is an
/// error here and not a SIGBUS at first touch, and sealed, so that no peer can take it away. `map` maps it here.
pub(super) fn reserve<T>(size: usize, map: impl FnOnce(&OwnedFd) -> io::Result<T>) -> Result<(OwnedFd, T)> {
    let make = || -> io::Result<(OwnedFd, T)> {
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

/// Checks that a file is shared memory of `size` bytes, made by [`reserve`], here or in a peer.
pub(super) fn check(file: &OwnedFd, size: usize) -> io::Result<()> {
    let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
    if !sealed || rustix::fs::fstat(file)?.st_size != size as i64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not the shared memory that was announced"));
    }
    Ok(())
}

/// Maps `len` bytes of shared memory that was checked, populated, so that page faults do not disturb the first
/// operations.
pub(super) fn map(file: &OwnedFd, offset: usize, len: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().offset(offset as u64).len(len).populate().map_raw(file)
}

impl Segment {
    /// A new segment of the rank at `place` among `ranks`, and the file that the others map it from. `waker` ends a sleep
    /// in which the rank waits for descriptors.
    pub(super) fn create(ranks: usize, place: usize, waker: Arc<Doorbell>) -> Result<(Arc<Self>, OwnedFd)> {
        let shape = Shape::new(ranks);
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
        let shape = Shape::new(ranks);
        check(file, shape.segment())?;
        let head = map(file, 0, shape.head())?;
        let offset = shape.head() + ring_index(place, writer) * shape.ring;
        let rings = RingMaps::Of(writer, map(file, offset, shape.ring)?);
        Ok(Arc::new(Segment { head, rings, shape, place, waker }))
    }

    /// Reads what proves that this process has the segment's own memory, and not something like it.
    pub(super) fn proof(&self) -> Proof {
        let [low, high] = [PROOF, PROOF + 8].map(|at| u128::from(self.atomic(at).load(Ordering::Acquire)));
        (high << 64 | low).to_le_bytes()
    }

    /// The sizes of its parts.
    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    fn futex_word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= self.head.len());
        // SAFETY: in bounds and aligned (offsets are multiples of APART, the map of a page); shared memory that all
        // processes access only atomically.
        unsafe { AtomicU32::from_ptr(self.head.as_mut_ptr().add(offset).cast()) }
    }

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.head.len());
        // SAFETY: as `word`.
        unsafe { AtomicU64::from_ptr(self.head.as_mut_ptr().add(offset).cast()) }
    }

    /// The ring into which `sender` writes, mapped here: any in a rank's own segment, its own in a peer's.
    pub(super) fn ring_of(&self, sender: usize) -> Ring<MappedRing<'_>> {
        assert!(sender < self.shape.ranks && sender != self.place, "a segment has one ring for each peer");
        let index = ring_index(self.place, sender);
        let bytes = match &self.rings {
            RingMaps::All(map) => map.as_mut_ptr().wrapping_add(index * self.shape.ring),
            RingMaps::Of(writer, map) => {
                assert!(*writer == sender, "a peer writes into its own ring");
                map.as_mut_ptr()
            }
        };
        Ring(MappedRing { segment: self, counters: self.shape.counters() + index * COUNTERS, bytes })
    }

    /// What the segment's rank tells everyone.
    pub(super) fn control_block(&self) -> ControlBlock<'_, Self> {
        ControlBlock::new(self)
    }

    /// Address of the board's bytes from `offset` on, `len` of which are inside it.
    fn control_address(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= CONTROL_BLOCK, "within the control block");
        self.head.as_mut_ptr().wrapping_add(self.shape.control_block() + offset)
    }

    /// Bytes of the board.
    pub(super) fn control_bytes(&self, offset: usize, len: usize) -> SharedBytes<'_> {
        // SAFETY: within the board, as `control_address` checked; all processes write it by `store` and atomics only.
        unsafe { SharedBytes::new(self.control_address(offset, len), len) }
    }

    fn stage(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at + len <= 2 * self.shape.half(), "within the stage");
        self.head.as_mut_ptr().wrapping_add(self.shape.stage() + at)
    }

    /// Copies bytes to this rank's stage. Nobody reads them now: see `staged`; but who has not given up yet, for nothing.
    pub(super) fn stage_store(&self, at: usize, bytes: &[u8]) {
        // SAFETY: within the stage, as `stage` checked.
        unsafe { bytes::store(bytes, self.stage(at, bytes.len())) }
    }

    /// Bytes on a peer's stage, which it does not write now: see `staged`; unless it gives up.
    pub(super) fn stage_bytes(&self, at: usize, len: usize) -> SharedBytes<'_> {
        // SAFETY: as above; all processes write it by `store` only.
        unsafe { SharedBytes::new(self.stage(at, len), len) }
    }

    fn parker(&self) -> Parker<'_, AtomicU32> {
        Parker { bell: self.futex_word(BELL), parked: self.futex_word(PARKED) }
    }

    /// The bell's count, which rises whenever somebody rings.
    pub(super) fn bell_count(&self) -> u32 {
        self.futex_word(BELL).load(Ordering::Acquire)
    }

    /// Lets everyone know on which core the segment's rank runs.
    pub(super) fn show_core(&self, core: u32) {
        let known = self.futex_word(CORE);
        let shown = core.wrapping_add(1);
        if known.load(Ordering::Relaxed) != shown {
            known.store(shown, Ordering::Relaxed);
        }
    }

    /// Where the rank ran when it last waited for longer; `None` before it ever has.
    pub(super) fn core(&self) -> Option<u32> {
        self.futex_word(CORE).load(Ordering::Relaxed).checked_sub(1)
    }

    /// Announces sleep: see [`Parker::announce_park`].
    pub(super) fn announce_park(&self, how: ParkMode) {
        self.parker().announce_park(how);
    }

    /// Ends what [`Segment::announce_park`] began.
    pub(super) fn end_park(&self) {
        self.parker().end_park();
    }

    /// Sleeps on the futex unless the bell has rung since `heard`, until it does or the time is over.
    pub(super) fn park(&self, bell_count: u32, at_most: Duration) {
        let timeout = timespec(at_most);
        // Whatever ends the wait, the caller looks for work and may come back: no outcome is an error.
        let _ = futex::wait(self.futex_word(BELL), futex::Flags::empty(), bell_count, Some(&timeout));
    }

    /// Wakes the rank if it sleeps; called after giving it work.
    pub(super) fn unpark(&self) {
        Self::fence_before_unpark();
        self.unpark_if_parked();
    }

    /// The first half of [`Segment::unpark`], of however many segments.
    pub(super) fn fence_before_unpark() {
        Parker::<AtomicU32>::fence_before_unpark();
    }

    /// The second half.
    pub(super) fn unpark_if_parked(&self) {
        match self.parker().unpark() {
            None => {}
            Some(ParkMode::Futex) => self.wake(),
            Some(ParkMode::Descriptor) => self.waker.ring(),
        }
    }

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
        // SAFETY: within the board, as `control_address` checked.
        unsafe { bytes::store(bytes, self.control_address(offset, bytes.len())) }
    }

    fn load(&self, offset: usize, into: &mut [u8]) {
        self.control_bytes(offset, into.len()).load(into);
    }
}

impl Bell for Segment {
    fn ring(&self) {
        // Counted in any case, so that it ends the next sleep if there is none now.
        self.futex_word(BELL).fetch_add(1, Ordering::SeqCst);
        self.wake();
        self.waker.ring();
    }
}

/// Which of a segment's rings `sender` writes into; the segment's own rank, at `place`, needs none.
fn ring_index(place: usize, sender: usize) -> usize {
    sender - usize::from(sender > place)
}

/// The parts of a segment that one ring takes.
pub(super) struct MappedRing<'a> {
    segment: &'a Segment,
    /// Offset of its counters.
    counters: usize,
    /// Where its bytes are mapped.
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
        // SAFETY: within the ring's bytes, as just checked; the reader does not look at them, as `RingMemory` says.
        unsafe { self.bytes.add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len()) }
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.capacity(), "a run lies within the ring");
        // SAFETY: as above; the writer does not touch them.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.bytes.add(offset), into.len()) }
    }
}
