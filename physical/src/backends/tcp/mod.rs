//! Transport between ranks that are processes anywhere, over TCP. Use it for several hosts, or a host without shared
//! memory.
//!
//! Each pair of ranks has one connection per channel, non-blocking, read and written by the thread that waits. Several
//! can be requested ([`JoinOptions::sockets`](crate::JoinOptions::sockets)), for networks that limit the rate of each.
//!
//! Connections begin in `connect`; `bootstrap::sockets::dial` calls, `bootstrap::sockets::data_listener` answers, and
//! `bootstrap::handshake` has the proofs, which docs/security.md explains to users.

#![allow(clippy::disallowed_methods, reason = "a backend")]

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::{TcpBackend, TcpFabric, TcpPrepared};
pub(crate) use endpoint::TcpParking;
pub(crate) use link::TcpLink;
