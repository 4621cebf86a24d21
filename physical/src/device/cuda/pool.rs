//! Pools of memory that is dear to allocate. Open this to see how much of it is kept.
//!
//! What comes back is kept for the next one of its class of sizes, which differ by a quarter at most: a program that
//! communicates asks for the same sizes again and again. When memory runs out, a pool gives all back.

use super::gpu::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// Smallest class, in bytes: a page.
const LEAST: usize = 4096;

/// Memory that nobody uses, by its size.
#[derive(Default)]
pub(super) struct Pool(Mutex<HashMap<usize, Vec<usize>>>);

impl Pool {
    /// Returns the size to allocate for `bytes` bytes: at most a quarter more, and at least a page.
    pub(super) fn class(bytes: usize) -> usize {
        let step = bytes.checked_next_power_of_two().unwrap_or(bytes) / 8;
        bytes.checked_next_multiple_of(step.max(LEAST)).unwrap_or(bytes).max(LEAST)
    }

    /// Takes memory of a class, if there is some; returns its address.
    pub(super) fn take(&self, class: usize) -> Option<usize> {
        lock(&self.0).get_mut(&class)?.pop()
    }

    /// Keeps memory of a class that nobody uses any more.
    pub(super) fn put(&self, class: usize, address: usize) {
        lock(&self.0).entry(class).or_default().push(address);
    }

    /// Takes all memory that is kept; returns the addresses.
    pub(super) fn drain(&self) -> Vec<usize> {
        lock(&self.0).drain().flat_map(|(_, addresses)| addresses).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_quarter_larger_at_most_and_few() {
        for bytes in [0, 1, 4096] {
            assert_eq!(Pool::class(bytes), 4096);
        }
        let mut classes = std::collections::BTreeSet::new();
        for bytes in (4096..10_000_000).step_by(777) {
            let class = Pool::class(bytes);
            assert!(class >= bytes && class - bytes <= (bytes / 4).max(4096), "{bytes}: {class}");
            assert_eq!(Pool::class(class), class);
            classes.insert(class);
        }
        assert!(classes.len() < 60, "{}", classes.len());
        assert_eq!(Pool::class(usize::MAX), usize::MAX);
    }

    #[test]
    fn what_comes_back_is_given_again_for_its_class_only() {
        let pool = Pool::default();
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
}
