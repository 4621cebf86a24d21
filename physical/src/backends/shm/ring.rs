//! A queue of bytes from one writer to one reader, over any memory: the rings between two processes.
//!
//! `head` and `tail` count bytes since the beginning. The reader advances `head`, the writer advances `tail`. A writer
//! that finds the ring full raises `blocked`; the reader that frees bytes lowers it and wakes the writer.

use super::atomic::SharedAtomic;
use std::io::{self, IoSlice};
use std::sync::atomic::Ordering;

/// Counters and bytes of a ring.
pub(super) trait RingMemory {
    /// Type of the counters.
    type Atomic: SharedAtomic;
    /// Returns the number of bytes read since the beginning.
    fn head(&self) -> &Self::Atomic;
    /// Returns the number of bytes written since the beginning.
    fn tail(&self) -> &Self::Atomic;
    /// Returns the flag of a writer that waits for free bytes.
    fn blocked(&self) -> &Self::Atomic;
    /// Returns the number of bytes in the ring, a power of two.
    fn capacity(&self) -> usize;
    /// Stores `from` at `offset`. The range is within the capacity, and the reader does not read it now.
    fn copy_in(&self, offset: usize, from: &[u8]);
    /// Loads `into` from `offset`. The range is within the capacity, and the writer does not write it now.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

/// Ring over some memory, for its writer and its reader.
pub(super) struct ByteRing<P>(pub(super) P);

impl<P: RingMemory> ByteRing<P> {
    /// Returns the number of bytes between head and tail. Fails if the counters cannot be right.
    fn used(&self, head: u64, tail: u64) -> io::Result<usize> {
        match usize::try_from(tail.wrapping_sub(head)) {
            Ok(used) if used <= self.0.capacity() => Ok(used),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the counters of a ring are damaged")),
        }
    }

    /// Returns the number of free bytes, for the writer whose tail is `tail`.
    fn room(&self, tail: u64) -> io::Result<usize> {
        Ok(self.0.capacity() - self.used(self.0.head().load(Ordering::Acquire), tail)?)
    }

    /// Writes a prefix of `parts` and returns its length. Only the writer calls this.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let tail = self.0.tail().load(Ordering::Relaxed);
        let mut room = self.room(tail)?;
        if room == 0 {
            self.0.blocked().store(1, Ordering::Relaxed);
            // Either the reader sees the flag, or this rank sees the bytes that the reader freed.
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

    /// Reads into a prefix of `into` and returns its length, 0 if the ring is empty. Only the reader calls this.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let head = self.0.head().load(Ordering::Relaxed);
        let take = self.used(head, self.0.tail().load(Ordering::Acquire))?.min(into.len());
        if take > 0 {
            self.split(head, take, |offset, range| self.0.copy_out(offset, &mut into[range]));
            self.0.head().store(head.wrapping_add(take as u64), Ordering::Release);
        }
        Ok(take)
    }

    /// Returns true if the writer waits for the bytes that the last read freed, and lowers its flag. Called after each
    /// read.
    pub(super) fn take_blocked(&self) -> bool {
        P::Atomic::fence(Ordering::SeqCst);
        let blocked = self.0.blocked().load(Ordering::Relaxed) != 0;
        if blocked {
            self.0.blocked().store(0, Ordering::Relaxed);
        }
        blocked
    }

    /// Calls `copy` for the one or two runs of `len` bytes at `position`, with the offset in the ring and the range of
    /// the bytes.
    fn split(&self, position: u64, len: usize, mut copy: impl FnMut(usize, std::ops::Range<usize>)) {
        // A mask instead of a division, which would take longer than a short copy.
        let offset = position as usize & (self.0.capacity() - 1);
        let first = len.min(self.0.capacity() - offset);
        copy(offset, 0..first);
        if first < len {
            copy(0, first..len);
        }
    }
}
