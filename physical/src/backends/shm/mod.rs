//! Transport between ranks that are processes of one host, over rings in shared memory. Use it for several ranks a
//! host.
//!
//! Each rank owns one anonymous segment per channel: a doorbell, a control block, and one ring for each rank that
//! sends to it. More ranks make the rings smaller (`shape`). Segments are memfds that are passed over unix sockets,
//! so that nothing is left behind, however a process ends.
//!
//! `connect` exchanges the segments by messages that carry descriptors (`descriptors`), and later the registered
//! memory (`registration`). `link` sends and receives by a `ring` (bytes from one rank to another) in the `segment`
//! of each side. A segment also serves `park` (parking without a lost wake-up) and holds a `control_block` (the state
//! of a rank that all others read). `affinity` separates ranks that share a core. `collectives` holds the operations
//! that need no messages. Each begins with an `entry`, with which a small one is complete, and continues as a
//! `running` collective, which reads the registered memory of the peers (`registered`, `region`) or copies through a
//! stage (`staged`); `reduction` combines the contributions. `atomic` lets loom check the parts that several
//! processes access concurrently.

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
