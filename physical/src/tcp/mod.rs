//! Ranks as processes anywhere, connected by TCP. When you would want it: several hosts, or a host without shared memory.
//!
//! One connection per pair of ranks and channel, non-blocking, read and written by the thread that waits. Several can be
//! asked for ([`JoinOptions::sockets`](crate::JoinOptions::sockets)), for networks that limit the rate of each.

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use connect::sockets;
pub(crate) use connect::{TcpBackend, TcpFabric, TcpPrepared};
pub(crate) use endpoint::TcpWire;
