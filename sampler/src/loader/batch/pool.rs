//! Reusable memory for batches.
//!
//! A buffer returns to its pool when it is dropped, on any thread, and the pool keeps it for the next buffer of about
//! the same size. Idle memory never exceeds the peak of memory in use. A pool can use memory other than the heap: see
//! [`Memory`].

use super::memory::{CacheLines, LINE, Memory};
use crate::dataset::Cause;
use bytemuck::Pod;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Element types of arrays and buffers: plain numbers.
pub trait Element: Pod + Send + Sync {}

impl<T: Pod + Send + Sync> Element for T {}

/// Pool of reusable buffers. Clones are handles to the same pool, and may be used from any thread.
#[derive(Clone, Default)]
pub struct Pool {
    free_list: Arc<Mutex<FreeList>>,
    /// `None` for the heap.
    memory: Option<Arc<dyn Memory>>,
}

#[derive(Default)]
struct FreeList {
    /// Oldest first.
    idle: VecDeque<CacheLines>,
    usage: PoolUsage,
    /// First error, not yet taken, because of which memory came from the heap instead.
    failure: Option<Cause>,
}

/// Memory of a [`Pool`], in bytes and buffers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes in buffers in use.
    pub in_use: usize,
    /// Maximum of `in_use` so far.
    pub peak: usize,
    /// Bytes in idle buffers.
    pub idle: usize,
    /// Buffers allocated since the pool was created; constant once buffers are reused.
    pub allocated: u64,
}

impl Pool {
    /// Creates an empty pool.
    pub fn new() -> Self {
        Pool::default()
    }

    /// Creates an empty pool that allocates from `memory`.
    pub fn over(memory: Arc<dyn Memory>) -> Self {
        Pool { free_list: Arc::default(), memory: Some(memory) }
    }

    /// Returns a buffer of `len` elements with arbitrary contents: zeros, or those of an earlier use.
    ///
    /// If the [`Memory`] of the pool is exhausted, the buffer is on the heap, and the loader ends the epoch with the
    /// error.
    pub fn take<T: Element>(&self, len: usize) -> Buffer<T> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= LINE, "not an element of arrays") };
        let wanted = len.saturating_mul(size_of::<T>()).div_ceil(LINE);
        let recycled = self.free_list().recycle(wanted);
        let room = recycled.unwrap_or_else(|| self.allocate(rounded(wanted)));
        Buffer { room, len, home: self.clone(), element: PhantomData }
    }

    fn allocate(&self, lines: usize) -> CacheLines {
        let Some(memory) = &self.memory else { return CacheLines::on_heap(lines) };
        CacheLines::of(&**memory, lines).unwrap_or_else(|cause| {
            self.free_list().failure.get_or_insert(cause);
            CacheLines::on_heap(lines)
        })
    }

    /// Takes the error because of which memory came from the heap, if any.
    pub(crate) fn take_failure(&self) -> Option<Cause> {
        self.memory.as_ref()?;
        self.free_list().failure.take()
    }

    /// Returns the current memory usage of the pool.
    pub fn usage(&self) -> PoolUsage {
        self.free_list().usage
    }

    /// Locks the free list. A panic cannot corrupt it: it only holds idle memory.
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        self.free_list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.usage()).finish()
    }
}

impl FreeList {
    /// Takes the smallest idle buffer that is large enough and at most twice as large. Counts the memory as taken,
    /// even if the caller must allocate it.
    fn recycle(&mut self, wanted: usize) -> Option<CacheLines> {
        let fits = |room: &CacheLines| (wanted..=rounded(wanted) * 2).contains(&room.lines());
        let candidates = self.idle.iter().enumerate().filter(|(_, room)| fits(room));
        let found = candidates.min_by_key(|(_, room)| room.lines()).map(|(at, _)| at);
        let room = found.and_then(|at| self.idle.remove(at));
        let bytes = LINE * room.as_ref().map_or(rounded(wanted), CacheLines::lines);
        self.usage.in_use += bytes;
        self.usage.peak = self.usage.peak.max(self.usage.in_use);
        match &room {
            Some(_) => self.usage.idle -= bytes,
            None => self.usage.allocated += 1,
        }
        room
    }

    /// Takes a buffer back, optionally to keep it, and frees the oldest ones if idle memory exceeds the limit.
    fn put_back(&mut self, room: CacheLines, is_kept: bool) {
        self.usage.in_use -= LINE * room.lines();
        if !is_kept {
            return;
        }
        self.usage.idle += LINE * room.lines();
        self.idle.push_back(room);
        while self.usage.idle > self.usage.peak {
            let Some(oldest) = self.idle.pop_front() else { return };
            self.usage.idle -= LINE * oldest.lines();
        }
    }
}

/// Rounds a size up to eighths of a power of two, so that batches of slightly different sizes share buffers.
fn rounded(lines: usize) -> usize {
    let eighth = (lines / 8).max(1).next_power_of_two();
    lines.div_ceil(eighth) * eighth
}

/// Elements in memory of a [`Pool`], to which the memory returns when the buffer is dropped.
pub struct Buffer<T: Element> {
    room: CacheLines,
    len: usize,
    home: Pool,
    element: PhantomData<T>,
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.room.bytes()[..self.len * size_of::<T>()])
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.room.bytes_mut()[..self.len * size_of::<T>()])
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        let room = std::mem::take(&mut self.room);
        // A heap substitute for exhausted memory does not belong in the pool.
        let is_kept = self.home.memory.is_none() || matches!(room, CacheLines::Elsewhere { .. });
        self.home.free_list().put_back(room, is_kept);
    }
}

impl<T: Element + fmt::Debug> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::batch::memory::{Bytes, CacheLine};
    use bytemuck::Zeroable;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn memory_comes_back_and_is_used_again() {
        let pool = Pool::new();
        let address = pool.take::<f32>(1000).as_ptr().addr();
        for _ in 0..10 {
            assert_eq!(pool.take::<f32>(990).as_ptr().addr(), address);
            assert_eq!(pool.take::<u8>(4000).as_ptr().addr(), address, "of any element type");
        }
        assert_eq!(pool.usage().allocated, 1);
        assert_eq!(pool.usage().in_use, 0);
    }

    #[test]
    fn buffers_have_the_length_asked_for_and_are_aligned() {
        let pool = Pool::new();
        for len in [0, 1, 7, 16, 17, 1000] {
            let mut buffer = pool.take::<[f32; 3]>(len);
            buffer.fill([1.0, 2.0, 3.0]);
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|element| *element == [1.0, 2.0, 3.0]));
            assert_eq!(buffer.as_ptr().addr() % align_of::<f32>(), 0);
        }
    }

    #[test]
    fn idle_memory_never_exceeds_what_was_in_use_at_once() {
        let pool = Pool::new();
        for round in 0..200 {
            let held: Vec<Buffer<u8>> =
                (0..4).map(|at| pool.take(1 << ((round * 7 + at * 3) % 16))).collect();
            drop(held);
            let usage = pool.usage();
            assert!(usage.idle <= usage.peak, "{usage:?}");
        }
        let free_list = pool.free_list();
        assert_eq!(
            free_list.idle.iter().map(|room| room.lines() * LINE).sum::<usize>(),
            free_list.usage.idle
        );
    }

    /// Memory of which there is only so much.
    struct Scarce(AtomicUsize);

    impl Memory for Scarce {
        fn allocate(&self, bytes: usize) -> Result<Box<dyn Bytes>, Cause> {
            let enough = |left: usize| left.checked_sub(bytes);
            self.0.fetch_update(Relaxed, Relaxed, enough).map_err(|left| format!("{left} bytes are left"))?;
            Ok(Box::new(vec![CacheLine::zeroed(); bytes / LINE]))
        }
    }

    #[test]
    fn memory_from_elsewhere_is_used_again_and_its_end_is_told_once() {
        let pool = Pool::over(Arc::new(Scarce(AtomicUsize::new(1 << 12))));
        let address = pool.take::<u8>(1 << 12).as_ptr().addr();
        assert_eq!(pool.take::<f32>(1 << 10).as_ptr().addr(), address);
        assert!(pool.take_failure().is_none());
        let held = [pool.take::<u8>(1 << 12), pool.take(1 << 12)];
        assert_eq!(pool.take_failure().unwrap().to_string(), "0 bytes are left");
        assert!(pool.take_failure().is_none());
        assert_eq!(pool.usage().in_use, 2 << 12);
        drop(held);
        assert_eq!(pool.usage().in_use, 0);
    }

    #[test]
    fn a_small_buffer_does_not_occupy_a_huge_one() {
        let pool = Pool::new();
        drop(pool.take::<u8>(1 << 20));
        let small = pool.take::<u8>(100);
        assert_eq!(pool.usage().idle, 1 << 20);
        assert!(small.room.lines() * LINE <= 256);
    }

    #[test]
    fn rounding_wastes_at_most_a_quarter_beyond_a_few_lines() {
        for lines in 0..5000 {
            let rounded = rounded(lines);
            assert!(rounded >= lines && rounded <= lines + lines / 4 + 1, "{lines} {rounded}");
        }
    }
}
