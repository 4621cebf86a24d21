//! Centralized, synchronous: all ranks take part, and all get the same result. It is exact, or, in low precision
//! (`encoded`), bit-identical on all ranks.
//!
//! One file per primitive. `ring` holds the two halves of the ring, `runs` the replacement for small messages, and
//! `share` common rules: chunk boundaries, size checks, and the computation of means.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod chunk;
pub mod encoded;
mod exchange;
mod gather;
mod halving_doubling;
mod hierarchy;
mod recursive_gather;
mod reduce;
mod reduce_scatter;
mod ring;
mod scatter;

pub(crate) use chunk::{TAGS, chunk, free_to_read, free_to_write};
pub use hierarchy::Hierarchy;
pub(crate) use ring::{AHEAD, SEGMENT};
