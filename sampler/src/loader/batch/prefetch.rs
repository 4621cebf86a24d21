//! A processor hint that memory will be read soon.
//!
//! The hardware prefetcher restarts on every page, and samples of a few pages at random places consist mostly of such
//! restarts. While one sample is copied, the beginning of each page of the next one is prefetched: measured 1.2 to
//! 1.6 times faster, for samples of three pages.

/// Range within which the hardware reads ahead, in bytes.
#[cfg(target_arch = "x86_64")]
const PAGE: usize = 4096;
/// Bytes prefetched at the beginning of each page, in cache lines.
#[cfg(target_arch = "x86_64")]
const BEGINNING: usize = 8;
/// Number of pages prefetched of a larger sample: the copy itself starts the hardware prefetcher.
#[cfg(target_arch = "x86_64")]
const PAGES: usize = 16;

/// Prefetches the beginnings of the pages of `memory`. Only a hint; other processors ignore it.
pub(super) fn soon<T>(memory: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = memory.as_ptr().cast::<i8>();
        let size = size_of_val(memory);
        for page in (0..size).step_by(PAGE).take(PAGES) {
            for line in (page..size.min(page + PAGE)).step_by(64).take(BEGINNING) {
                // SAFETY: a prefetch has no observable effect on memory, and `line` lies within `memory`, so that the
                // address is inside that allocation.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(line)) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = memory;
}
