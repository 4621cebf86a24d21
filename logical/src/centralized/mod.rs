//! Centralized, synchronous, full precision: everyone takes part, and everyone gets the exact result.
//!
//! One file a primitive. `ring` holds the two halves of the ring that several of them share, `share` the rules that they
//! have in common: chunk boundaries, size checks, and how means are formed.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod exchange;
mod gather;
mod halving_doubling;
mod hierarchy;
mod reduce;
mod reduce_scatter;
mod ring;
mod scatter;
mod share;

pub use hierarchy::Hierarchy;
pub(crate) use share::{free_to_read, free_to_write};
