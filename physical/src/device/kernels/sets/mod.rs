//! Instruction sets, and the vectors that kernels are written with.

pub mod portable;
pub mod set;
pub mod vector;
#[cfg(target_arch = "x86_64")]
pub mod x86;
