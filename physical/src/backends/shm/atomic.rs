//! Atomics in shared memory, behind a trait, so that loom can check the same code with its own.
//!
//! The code does not rely on the memory order of any one processor. Stores that must be seen in order use `Release` and
//! the matching loads use `Acquire`. In the two places where a store must not pass a later load (parking, and a full
//! ring) both sides have a sequentially consistent fence.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Atomic number in memory that several processes access.
pub(super) trait SharedAtomic {
    /// Loads the number.
    fn load(&self, order: Ordering) -> u64;
    /// Stores `value`.
    fn store(&self, value: u64, order: Ordering);
    /// Adds `value`, sequentially consistent, with wrap-around.
    fn add(&self, value: u64);
    /// Executes the fence that belongs to this kind of atomic.
    fn fence(order: Ordering);
}

/// Implements [`SharedAtomic`] for an atomic of the standard library or of loom, with its fence.
macro_rules! shared_atomic {
    ($atomic:ty, $number:ty, $fence:path) => {
        impl SharedAtomic for $atomic {
            fn load(&self, order: Ordering) -> u64 {
                <$atomic>::load(self, order).into()
            }

            fn store(&self, value: u64, order: Ordering) {
                <$atomic>::store(self, value as $number, order);
            }

            fn add(&self, value: u64) {
                self.fetch_add(value as $number, Ordering::SeqCst);
            }

            fn fence(order: Ordering) {
                $fence(order);
            }
        }
    };
}
#[cfg(all(test, hexagram_loom))]
pub(super) use shared_atomic;

shared_atomic!(AtomicU64, u64, fence);
// The kernel's futex words have 32 bits.
shared_atomic!(AtomicU32, u32, fence);
