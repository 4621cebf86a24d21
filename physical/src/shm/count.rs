//! The atomics that shared memory is made of, behind a trait, so that loom can check the same code on its own.
//!
//! Nothing here rests on the strength of one processor's memory order: what has to be seen in order is stored with
//! `Release` and loaded with `Acquire`, and the two places where a store must not pass a later load (falling asleep, and
//! a full ring) have a sequentially consistent fence on both sides.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A number in memory that several processes see.
pub(super) trait Count {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn add(&self, value: u64);
    fn fence(order: Ordering);
}

impl Count for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    fn add(&self, value: u64) {
        self.fetch_add(value, Ordering::SeqCst);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}

/// The kernel's futex words have 32 bits.
impl Count for AtomicU32 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU32::load(self, order).into()
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU32::store(self, value as u32, order);
    }

    fn add(&self, value: u64) {
        self.fetch_add(value as u32, Ordering::SeqCst);
    }

    fn fence(order: Ordering) {
        fence(order);
    }
}
