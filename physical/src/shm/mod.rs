//! Ranks as processes of one host, connected by rings in shared memory. When you would want it: several ranks a host.
//!
//! Each rank owns one anonymous segment per channel: a doorbell, and one ring for each rank that sends to it. Segments
//! are memfds handed over unix sockets, so nothing is left behind, however a process ends.

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::{ShmDoor, ShmFabric};
