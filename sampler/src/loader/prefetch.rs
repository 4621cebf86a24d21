//! A hint to the processor that memory is about to be read.
//!
//! The hardware reads ahead on its own, but begins anew on every page; samples of a few pages each, at random places,
//! are mostly beginnings. While one sample is copied, the beginning of each page of the next is asked for: measured
//! 1.2 to 1.6 times the speed, for samples of three pages.

/// Bytes that the hardware reads ahead within.
#[cfg(target_arch = "x86_64")]
const PAGE: usize = 4096;
/// Bytes asked for at the beginning of each page, in cache lines.
#[cfg(target_arch = "x86_64")]
const BEGINNING: usize = 8;
/// Number of pages read ahead of a sample that is larger: the copy itself gets the hardware going.
#[cfg(target_arch = "x86_64")]
const PAGES: usize = 16;

/// Asks for the beginnings of the pages of `memory`. Only a hint; other processors do without.
pub(super) fn soon<T>(memory: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = memory.as_ptr().cast::<i8>();
        let size = size_of_val(memory);
        for page in (0..size).step_by(PAGE).take(PAGES) {
            for line in (page..size.min(page + PAGE)).step_by(64).take(BEGINNING) {
                // SAFETY: a prefetch reads and writes nothing that a program could tell, and `line` lies within
                // `memory`, so that the address is one of that allocation.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(line)) };
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = memory;
}
