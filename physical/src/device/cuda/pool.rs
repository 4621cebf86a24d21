//! Pools of memory that is slow to allocate.
//!
//! Returned memory is kept for the next allocation of its size class; sizes in a class differ by a quarter at most. A
//! program that communicates allocates the same sizes repeatedly. A pool frees everything when memory runs out. It
//! also does so when a class is empty while more memory of other classes is kept than in use: then the sizes have
//! changed.

use crate::waiting::lock::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// Smallest class, in bytes: a page.
const LEAST: usize = 4096;

/// Bytes that are always kept, however little is in use.
const FEW: usize = 64 << 20;

/// Unused memory, by size.
#[derive(Default)]
pub(super) struct PinnedPool(Mutex<FreeLists>);

#[derive(Default)]
struct FreeLists {
    addresses: HashMap<usize, Vec<usize>>,
    /// Bytes of all of them.
    kept: usize,
    /// Bytes in use: taken from the pool or newly allocated, and not returned yet.
    used: usize,
}

impl PinnedPool {
    /// Returns the size to allocate for `bytes` bytes: at most a quarter more, and at least a page.
    pub(super) fn class(bytes: usize) -> usize {
        let step = bytes.checked_next_power_of_two().unwrap_or(bytes) / 8;
        bytes.checked_next_multiple_of(step.max(LEAST)).unwrap_or(bytes).max(LEAST)
    }

    /// Takes memory of a class, if any is kept; returns its address. Otherwise the caller allocates it, and later returns it to
    /// this pool.
    pub(super) fn take(&self, class: usize) -> Option<usize> {
        let mut kept = lock(&self.0);
        kept.used = kept.used.saturating_add(class);
        let address = kept.addresses.get_mut(&class)?.pop()?;
        kept.kept -= class;
        Some(address)
    }

    /// Keeps unused memory of a class.
    pub(super) fn put(&self, class: usize, address: usize) {
        let mut kept = lock(&self.0);
        kept.used = kept.used.saturating_sub(class);
        kept.kept += class;
        kept.addresses.entry(class).or_default().push(address);
    }

    /// Records that memory of a class could not be allocated.
    pub(super) fn miss(&self, class: usize) {
        let mut kept = lock(&self.0);
        kept.used = kept.used.saturating_sub(class);
    }

    /// Returns true if more bytes are kept than are in use, and more than the minimum.
    pub(super) fn is_overfull(&self) -> bool {
        let kept = lock(&self.0);
        kept.kept > kept.used.max(FEW)
    }

    /// Takes all kept memory; returns the addresses.
    pub(super) fn drain(&self) -> Vec<usize> {
        let mut kept = lock(&self.0);
        kept.kept = 0;
        kept.addresses.drain().flat_map(|(_, addresses)| addresses).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_quarter_larger_at_most_and_few() {
        for bytes in [0, 1, 4096] {
            assert_eq!(PinnedPool::class(bytes), 4096);
        }
        let mut classes = std::collections::BTreeSet::new();
        for bytes in (4096..10_000_000).step_by(777) {
            let class = PinnedPool::class(bytes);
            assert!(class >= bytes && class - bytes <= (bytes / 4).max(4096), "{bytes}: {class}");
            assert_eq!(PinnedPool::class(class), class);
            classes.insert(class);
        }
        assert!(classes.len() < 60, "{}", classes.len());
        assert_eq!(PinnedPool::class(usize::MAX), usize::MAX);
    }

    #[test]
    fn what_comes_back_is_given_again_for_its_class_only() {
        let pool = PinnedPool::default();
        pool.put(4096, 1);
        pool.put(8192, 2);
        assert_eq!(pool.take(8192), Some(2));
        assert_eq!(pool.take(8192), None);
        pool.put(8192, 2);
        let mut all = pool.drain();
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        assert_eq!(pool.take(4096), None);
    }
    #[test]
    fn what_is_kept_is_not_much_more_than_what_is_used() {
        let pool = PinnedPool::default();
        pool.put(FEW, 1);
        assert!(!pool.is_overfull());
        pool.put(4096, 2);
        assert!(pool.is_overfull());
        assert_eq!(pool.take(2 * FEW), None);
        assert!(!pool.is_overfull(), "as much is in use");
        pool.miss(2 * FEW);
        assert!(pool.is_overfull());
        assert_eq!(pool.drain().len(), 2);
        assert!(!pool.is_overfull());
    }
}
