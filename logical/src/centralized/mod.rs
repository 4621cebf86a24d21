//! Centralized, synchronous: everyone takes part, and everyone gets the same result: the exact one, or in low precision
//! (`encoded`) one that is bit-identical on all ranks.
//!
//! One file a primitive. `ring` holds the two halves of the ring that several of them share, `runs` what small messages take in
//! its place, `share` the rules that they have in common: chunk boundaries, size checks, and how means are formed.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
pub mod encoded;
mod exchange;
mod gather;
mod halving_doubling;
mod hierarchy;
mod reduce;
mod reduce_scatter;
mod ring;
mod runs;
mod scatter;
mod share;

pub use hierarchy::Hierarchy;
pub(crate) use hierarchy::HostGroups;
pub(crate) use ring::{AHEAD, SEGMENT};
pub(crate) use share::{TAGS, chunk, free_to_read, free_to_write};
