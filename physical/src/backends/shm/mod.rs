//! Transport between ranks that are processes of one host, over rings in shared memory. Use it for several ranks a
//! host.
//!
//! Each rank owns one anonymous segment per channel: a doorbell, a control block, and one ring for each rank that
//! sends to it. More ranks make the rings smaller (`segment::shape`). Segments are memfds that are passed over unix sockets,
//! so that nothing is left behind, however a process ends.
//!
//! | module | content |
//! |---|---|
//! | `connect`, `endpoint` | the start, and one thread's connection to the other ranks |
//! | `segment` | memory of a rank that others map: its shape, its exchange by descriptors, registered memory |
//! | `link`, `ring` | messages: bytes from one rank to another, through a ring in the segment of the receiver |
//! | `park` | parking without a lost wake-up |
//! | `control_block` | the state of a rank that all others read |
//! | `affinity` | separation of ranks that share a core |
//! | `collectives` | operations without messages: on registered memory, or through a stage |
//! | `bytes`, `atomic` | copies of bytes that a peer may change; atomics that loom can check |

#![allow(clippy::disallowed_methods, reason = "a backend")]

mod affinity;
mod atomic;
mod bytes;
mod collectives;
mod connect;
mod control_block;
mod endpoint;
mod link;
#[cfg(all(test, hexagram_loom))]
mod loom;
mod park;
mod ring;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use connect::{HostSegments, ShmBackend, ShmFabric, ShmPrepared};
pub(crate) use endpoint::ShmParking;
pub(crate) use link::ShmLink;
pub(crate) use park::ParkMode;
#[cfg(test)]
pub(crate) use tests::refuse_to_map;
