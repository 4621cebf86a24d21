//! Ranks as processes of one host, connected by rings in shared memory. When you would want it: several ranks a host.
//!
//! Each rank owns one anonymous segment per channel: a doorbell, a board, and one ring for each rank that sends to it; the
//! more ranks there are, the smaller its rings (`shape`).
//! Segments are memfds handed over unix sockets, so nothing is left behind, however a process ends.
//!
//! `link` is the segment, made of `ring` (bytes from one rank to another), `bed` (falling asleep and being woken) and
//! `board` (what a rank tells everyone); `core` parts ranks that share a core. `collectives` are the operations that need
//! no messages: each begins with an `arrival`, which is all of a small one, and goes on as a `job`, whose `work` reads the
//! peers' registered memory (`region`) or stages (`staged`); `combine` makes one of all contributions. `count` lets loom
//! check the parts that several processes touch at once.

mod arrival;
mod available;
mod bed;
mod board;
mod bytes;
mod collectives;
mod combine;
mod connect;
mod core;
mod count;
mod endpoint;
mod job;
mod link;
#[cfg(all(test, hexagram_loom))]
mod loom;
mod region;
mod ring;
mod room;
mod shape;
mod staged;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use bed::Sleep;
pub(crate) use connect::{Gathered, ShmDoor, ShmFabric, probe};
pub(crate) use endpoint::ShmWire;
pub(crate) use link::Segment;
#[cfg(test)]
pub(crate) use tests::refuse_to_map;
