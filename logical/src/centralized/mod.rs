//! Centralized, synchronous: all ranks take part, and all get the same result. It is exact, or, in low precision
//! (`encoded`), bit-identical on all ranks.
//!
//! One file per primitive. `steps` contains the ring and its replacements for small buffers, and `chunk` common rules:
//! chunk boundaries, size checks, and the computation of means.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod chunk;
pub mod encoded;
mod gather;
mod hierarchy;
mod reduce;
mod reduce_scatter;
mod scatter;
mod steps;

pub(crate) use chunk::{TAGS, chunk, free_to_read, free_to_write};
pub use hierarchy::Hierarchy;
pub(crate) use steps::{AHEAD, SEGMENT};
