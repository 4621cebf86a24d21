//! What lies between two processes of one host: a segment of shared memory with a doorbell and rings.
//!
//! ```text
//! segment = doorbell ring × ranks
//! ring    = head tail blocked bytes          a single-producer single-consumer queue of bytes
//! ```
//!
//! `head` and `tail` count bytes since the beginning; the reader advances `head`, the writer `tail`. A writer that finds
//! no room raises `blocked`, and the reader who makes room rings the writer's doorbell.

use crate::doorbell::timespec;
use crate::error::{Error, Result};
use crate::transport::Bell;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::thread::futex;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes in flight from one rank to another; a few rings fit into the second-level cache.
const CAPACITY: usize = 256 * 1024;
/// Two cache lines: adjacent-line prefetch would otherwise tie the two sides together.
const APART: usize = 128;

const BELL: usize = 0;
const SLEEPING: usize = APART;
const RINGS: usize = 2 * APART;

const HEAD: usize = 0;
const TAIL: usize = APART;
const BLOCKED: usize = 2 * APART;
const BYTES: usize = 3 * APART;
const STRIDE: usize = BYTES + CAPACITY;

/// One rank's segment, mapped.
pub(super) struct Segment {
    map: MmapRaw,
    ranks: usize,
}

impl Segment {
    fn size(ranks: usize) -> usize {
        RINGS + ranks * STRIDE
    }

    /// A new segment into which `ranks` ranks can write, and the file that others map it from.
    pub(super) fn create(ranks: usize) -> Result<(Arc<Self>, OwnedFd)> {
        let size = Self::size(ranks);
        let failed = |cause: io::Error| {
            let doing = format!("reserve {} KiB of shared memory", size / 1024);
            Error::system(doing, cause, "free memory, or use the tcp transport")
        };
        let reserve = || -> rustix::io::Result<OwnedFd> {
            let file = rustix::fs::memfd_create("hexagram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            // Memory that cannot be had is an error here, and not a SIGBUS at first touch.
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size as u64)?;
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
            Ok(file)
        };
        let file = reserve().map_err(|cause| failed(cause.into()))?;
        let map = MmapOptions::new().len(size).map_raw(&file).map_err(failed)?;
        Ok((Arc::new(Segment { map, ranks }), file))
    }

    /// Maps a segment that another rank created.
    pub(super) fn map(file: &OwnedFd, ranks: usize) -> io::Result<Arc<Self>> {
        let size = Self::size(ranks);
        let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !sealed || rustix::fs::fstat(file)?.st_size != size as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a segment of this world"));
        }
        let map = MmapOptions::new().len(size).map_raw(file)?;
        Ok(Arc::new(Segment { map, ranks }))
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
    pub(super) fn ring_of(&self, sender: usize) -> Ring<'_> {
        assert!(sender < self.ranks, "a segment has one ring a rank");
        Ring { segment: self, at: RINGS + sender * STRIDE }
    }

    /// The doorbell's count, which rises with every ring.
    pub(super) fn bell(&self) -> u32 {
        self.word(BELL).load(Ordering::SeqCst)
    }

    /// Sleeps unless the count differs from `heard`, until it does or the time is over.
    pub(super) fn sleep(&self, heard: u32, at_most: Duration) {
        let timeout = timespec(at_most);
        self.word(SLEEPING).store(1, Ordering::SeqCst);
        // Whatever ends the wait, the caller looks for work and may come back: no outcome is an error.
        let _ = futex::wait(self.word(BELL), futex::Flags::empty(), heard, Some(&timeout));
        self.word(SLEEPING).store(0, Ordering::SeqCst);
    }
}

impl Bell for Segment {
    fn ring(&self) {
        self.word(BELL).fetch_add(1, Ordering::SeqCst);
        if self.word(SLEEPING).load(Ordering::SeqCst) != 0 {
            let _ = futex::wake(self.word(BELL), futex::Flags::empty(), u32::MAX >> 1);
        }
    }
}

/// One direction between two ranks.
pub(super) struct Ring<'a> {
    segment: &'a Segment,
    /// Offset of its head.
    at: usize,
}

impl Ring<'_> {
    fn head(&self) -> &AtomicU64 {
        self.segment.count(self.at + HEAD)
    }

    fn tail(&self) -> &AtomicU64 {
        self.segment.count(self.at + TAIL)
    }

    fn blocked(&self) -> &AtomicU32 {
        self.segment.word(self.at + BLOCKED)
    }

    /// Bytes between head and tail; an error if the other side wrote nonsense.
    fn used(&self, head: u64, tail: u64) -> io::Result<usize> {
        match usize::try_from(tail.wrapping_sub(head)) {
            Ok(used) if used <= CAPACITY => Ok(used),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a ring's counters are damaged")),
        }
    }

    /// Writes a prefix of `parts`. Only the sending rank calls this.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let tail = self.tail().load(Ordering::Relaxed);
        let mut room = CAPACITY - self.used(self.head().load(Ordering::Acquire), tail)?;
        if room == 0 {
            self.blocked().store(1, Ordering::SeqCst);
            // The reader may have made room before it could see the flag.
            room = CAPACITY - self.used(self.head().load(Ordering::SeqCst), tail)?;
        }
        let mut written = 0;
        for part in parts {
            let take = part.len().min(room - written);
            self.copy_in(tail + written as u64, &part[..take]);
            written += take;
        }
        self.tail().store(tail + written as u64, Ordering::Release);
        Ok(written)
    }

    /// Reads into a prefix of `into`; 0 if the ring is empty. Only the receiving rank calls this.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let head = self.head().load(Ordering::Relaxed);
        let take = self.used(head, self.tail().load(Ordering::Acquire))?.min(into.len());
        self.copy_out(head, &mut into[..take]);
        self.head().store(head + take as u64, Ordering::SeqCst);
        Ok(take)
    }

    /// Whether the writer waits for room; asked once per answer.
    pub(super) fn take_blocked(&self) -> bool {
        self.blocked().load(Ordering::SeqCst) != 0 && self.blocked().swap(0, Ordering::SeqCst) != 0
    }

    /// Splits `len` bytes at `position` where the ring wraps: offset of the first run, its length.
    fn split(&self, position: u64, len: usize) -> (usize, usize) {
        let offset = (position % CAPACITY as u64) as usize;
        (offset, len.min(CAPACITY - offset))
    }

    fn copy_in(&self, position: u64, from: &[u8]) {
        let (offset, first) = self.split(position, from.len());
        let bytes = self.segment.map.as_mut_ptr().wrapping_add(self.at + BYTES);
        // SAFETY: `offset + first <= CAPACITY` and the rest is shorter than `offset`, all within the map; the reader
        // does not touch bytes between tail and head + CAPACITY, which `room` counted.
        unsafe {
            bytes.add(offset).copy_from_nonoverlapping(from.as_ptr(), first);
            bytes.copy_from_nonoverlapping(from.as_ptr().add(first), from.len() - first);
        }
    }

    fn copy_out(&self, position: u64, into: &mut [u8]) {
        let (offset, first) = self.split(position, into.len());
        let bytes = self.segment.map.as_ptr().wrapping_add(self.at + BYTES);
        // SAFETY: in bounds as above; the writer does not touch bytes between head and tail.
        unsafe {
            into.as_mut_ptr().copy_from_nonoverlapping(bytes.add(offset), first);
            into.as_mut_ptr().add(first).copy_from_nonoverlapping(bytes, into.len() - first);
        }
    }
}
