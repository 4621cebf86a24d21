//! Ranks as processes of one host, connected by rings in shared memory. When you would want it: several ranks a host.
//!
//! Each rank owns one anonymous segment per channel: a doorbell, a board, and one ring for each rank that sends to it; the
//! more ranks there are, the smaller its rings (`shape`).
//! Segments are memfds handed over unix sockets, so nothing is left behind, however a process ends.
//!
//! `link` is the segment, made of `ring` (bytes from one rank to another), `parker` (falling asleep and being woken) and
//! `control_block` (what a rank tells everyone); `core` parts ranks that share a core. `collectives` are the operations that need
//! no messages: each begins with an `entry`, which is all of a small one, and goes on as a `running`, whose `work` reads the
//! peers' registered memory (`region`) or stages (`staged`); `combine` makes one of all contributions. `count` lets loom
//! check the parts that several processes touch at once.

mod affinity;
mod atomic;
mod bytes;
mod collectives;
mod connect;
mod control_block;
mod endpoint;
mod entry;
mod link;
#[cfg(all(test, hexagram_loom))]
mod loom;
mod memory_limits;
mod park;
mod reduction;
mod region;
mod registered;
mod reserve;
mod ring;
mod running;
mod shape;
mod staged;
#[cfg(test)]
mod tests;

pub(crate) use connect::{HostSegments, ShmBackend, ShmFabric, ShmPrepared};
pub(crate) use endpoint::ShmWire;
pub(crate) use link::Segment;
pub(crate) use park::ParkMode;
#[cfg(test)]
pub(crate) use tests::refuse_to_map;
