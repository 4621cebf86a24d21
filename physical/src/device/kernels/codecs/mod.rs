//! Kernels of codecs.

pub mod draw;
pub mod levels;
pub(super) mod min_max;
pub mod scaled;
pub(super) mod sign;
