//! A queue of bytes from one writer to one reader, over any memory: the rings between two processes.
//!
//! `head` and `tail` count bytes since the beginning; the reader advances `head`, the writer `tail`. A writer that finds
//! no room raises `blocked`, and the reader who makes room lowers it and wakes the writer.

use super::atomic::SharedAtomic;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;

/// Where a ring's counters and bytes are.
pub(super) trait RingMemory {
    type Atomic: SharedAtomic;
    fn head(&self) -> &Self::Atomic;
    fn tail(&self) -> &Self::Atomic;
    fn blocked(&self) -> &Self::Atomic;
    /// Bytes in the ring, a power of two.
    fn capacity(&self) -> usize;
    /// Stores `from` at `offset`. The range is within the capacity, and the reader does not look at it now.
    fn copy_in(&self, offset: usize, from: &[u8]);
    /// Loads `into` from `offset`. The range is within the capacity, and the writer does not touch it now.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

pub(super) struct Ring<P>(pub(super) P);

impl<P: RingMemory> Ring<P> {
    /// Bytes between head and tail; an error if the other side wrote nonsense.
    fn used(&self, head: u64, tail: u64) -> io::Result<usize> {
        match usize::try_from(tail.wrapping_sub(head)) {
            Ok(used) if used <= self.0.capacity() => Ok(used),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a ring's counters are damaged")),
        }
    }

    fn room(&self, tail: u64) -> io::Result<usize> {
        Ok(self.0.capacity() - self.used(self.0.head().load(Ordering::Acquire), tail)?)
    }

    /// Writes a prefix of `parts`. Only the writer calls this.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let tail = self.0.tail().load(Ordering::Relaxed);
        let mut room = self.room(tail)?;
        if room == 0 {
            self.0.blocked().store(1, Ordering::Relaxed);
            // Either the reader sees the flag, or this sees the room that it made.
            P::Atomic::fence(Ordering::SeqCst);
            room = self.room(tail)?;
        }
        let mut written = 0;
        for part in parts {
            let take = part.len().min(room - written);
            self.split(tail.wrapping_add(written as u64), take, |offset, range| {
                self.0.copy_in(offset, &part[range])
            });
            written += take;
        }
        self.0.tail().store(tail.wrapping_add(written as u64), Ordering::Release);
        Ok(written)
    }

    /// Reads into a prefix of `into`; 0 if the ring is empty. Only the reader calls this.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let head = self.0.head().load(Ordering::Relaxed);
        let take = self.used(head, self.0.tail().load(Ordering::Acquire))?.min(into.len());
        if take > 0 {
            self.split(head, take, |offset, range| self.0.copy_out(offset, &mut into[range]));
            self.0.head().store(head.wrapping_add(take as u64), Ordering::Release);
        }
        Ok(take)
    }

    /// Whether the writer waited for the room that the last read made; asked after each, and lowered by the answer.
    pub(super) fn take_blocked(&self) -> bool {
        P::Atomic::fence(Ordering::SeqCst);
        let blocked = self.0.blocked().load(Ordering::Relaxed) != 0;
        if blocked {
            self.0.blocked().store(0, Ordering::Relaxed);
        }
        blocked
    }

    /// The one or two runs of `len` bytes at `position`: offset in the ring, and which of the bytes.
    fn split(&self, position: u64, len: usize, mut copy: impl FnMut(usize, std::ops::Range<usize>)) {
        // Divided without a division, which would take longer than a short copy.
        let offset = position as usize & (self.0.capacity() - 1);
        let first = len.min(self.0.capacity() - offset);
        copy(offset, 0..first);
        if first < len {
            copy(0, first..len);
        }
    }
}
