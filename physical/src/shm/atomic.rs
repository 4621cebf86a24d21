//! The atomics that shared memory is made of, behind a trait, so that loom can check the same code on its own.
//!
//! Nothing here rests on the strength of one processor's memory order: what has to be seen in order is stored with
//! `Release` and loaded with `Acquire`, and the two places where a store must not pass a later load (falling asleep, and
//! a full ring) have a sequentially consistent fence on both sides.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A number in memory that several processes see.
pub(super) trait SharedAtomic {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn add(&self, value: u64);
    fn fence(order: Ordering);
}

/// An atomic of the standard library, or loom's of the same name, with the fence that belongs to it.
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
