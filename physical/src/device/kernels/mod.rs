//! The arithmetic of the host, on plain slices.
//!
//! A kernel is written once, over arrays of 16 lanes, as a function `kernel(set, …)` of an instruction set, always inlined.
//! `dispatch.rs` compiles it for every set, and selects one at run time. Four rules keep replicas on different machines
//! bit-identical:
//!
//! - products and sums are rounded separately (Rust never fuses them, and a kernel must not do so either);
//! - sums over a slice have a fixed order: lane i takes elements i, i + 64, …, and lanes are added by halves;
//! - minima compare (`if a < b { a } else { b }`): for +0 and −0, `f32::min` may return either;
//! - every NaN is replaced by the canonical NaN ([`Float::canonical`]) before it is stored: an operation on two NaNs may
//!   return the payload of either.
//!
//! The tests run every kernel on every instruction set of the machine, against a loop over elements.
//!
//! The GPU kernels in `.cu` files have the same bits: `physical/cuda/README.md` explains how to add one.

#[macro_use]
pub mod dispatch;
mod accumulate;
pub mod bits;
pub mod dot;
pub mod draw;
mod float;
mod half;
pub mod reach;
mod reduction;
pub mod sets;
pub mod sums;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod wide;

pub use accumulate::add_scaled;
pub use dispatch::widest;
pub use float::Float;
pub use half::{add_bf16, add_f16, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use reach::all_finite;
pub(crate) use reduction::{SharedFloats, add_shared};
pub use reduction::{canonicalize_f32, canonicalize_f64, reduce_f32, reduce_f64, scale_f32, scale_f64};
pub use wide::{add_scaled_wide, narrow, scaled_wide};

/// Elements that a kernel works on at a time: one register of AVX-512, two of AVX2, four of NEON or SSE.
pub const LANES: usize = 16;

/// Accumulators of a reduction: enough to hide the latency of an addition.
pub const WIDE: usize = 4 * LANES;

/// Calls a function for each index, and returns an array of the results. It replaces `std::array::from_fn`, which compiles to
/// several functions for each of its hundreds of uses in kernels.
#[inline(always)]
pub fn from_fn<T: Copy + Default, const N: usize>(mut of: impl FnMut(usize) -> T) -> [T; N] {
    let mut all = [T::default(); N];
    let mut at = 0;
    while at < N {
        all[at] = of(at);
        at += 1;
    }
    all
}

/// Combines all lanes into one, by halves: lane i with lane i + 32, then with i + 16, and so on.
#[inline(always)]
pub fn fold<T: Copy + Default>(lanes: [T; WIDE], combine: impl Fn(T, T) -> T) -> T {
    let lanes: [T; WIDE / 2] = from_fn(|lane| combine(lanes[lane], lanes[lane + WIDE / 2]));
    let lanes: [T; LANES] = from_fn(|lane| combine(lanes[lane], lanes[lane + LANES]));
    let lanes: [T; 8] = from_fn(|lane| combine(lanes[lane], lanes[lane + 8]));
    let lanes: [T; 4] = from_fn(|lane| combine(lanes[lane], lanes[lane + 4]));
    combine(combine(lanes[0], lanes[2]), combine(lanes[1], lanes[3]))
}

/// Prefetches the cache lines of `len` numbers, which need not exist. A kernel that reads a block twice calls it for
/// later numbers, so that memory transfers overlap with its arithmetic.
#[inline(always)]
pub fn prefetch(at: *const f32, len: usize) {
    for line in (0..len).step_by(LANES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program could see, and never faults.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, line);
    }
}
