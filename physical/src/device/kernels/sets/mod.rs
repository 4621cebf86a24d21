//! Instruction sets, and the vectors that kernels are written with.

pub(super) mod portable;
pub(super) mod set;
pub(super) mod vector;
#[cfg(target_arch = "x86_64")]
pub(super) mod x86;
