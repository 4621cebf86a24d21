//! The arithmetic of the host, on plain slices. Open this to call a kernel from a codec of your own, or to add one.
//!
//! A kernel is written once, over arrays of 16 lanes, as a function `kernel(set, …)` of an instruction set, always
//! inlined; `dispatch.rs` compiles it for every set, and picks one as the program runs. Three rules keep replicas on
//! different machines bit-identical:
//!
//! - products and sums are rounded one by one (Rust never contracts them to a fused operation, and neither may you);
//! - sums over a slice have a fixed order: lane i takes elements i, i + lanes, …, and lanes are added pairwise;
//! - minima compare (`if a < b { a } else { b }`): of ±0, `f32::min` may return either.
//!
//! The tests run every kernel on every instruction set of the machine, against a loop over elements.

#[macro_use]
mod dispatch;
mod accumulate;
#[cfg(test)]
mod testing;

pub use accumulate::{add, add_scaled};

use dispatch::Set;

/// Elements that a kernel works on at a time: one register of AVX-512, two of AVX2, four of NEON or SSE.
pub const LANES: usize = 16;
