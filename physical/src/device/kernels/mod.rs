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
mod half;
mod min_max;
mod portable;
mod sign;
#[cfg(test)]
mod testing;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use accumulate::{add, add_scaled};
pub use half::{add_bf16, add_f16, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use min_max::{Range, add_dequantized, dequantize, quantize, range};
pub use sign::{add_signs, pack_signs, unpack_signs};

use dispatch::Set;

/// Elements that a kernel works on at a time: one register of AVX-512, two of AVX2, four of NEON or SSE.
pub const LANES: usize = 16;
