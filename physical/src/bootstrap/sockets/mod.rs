//! Sockets of start-up and of transports: listeners, addresses, connections of data, and the owner of a taken address.

pub(crate) mod data_listener;
pub(crate) mod dial;
pub mod interface;
pub(crate) mod listeners;
pub(crate) mod local;
pub(crate) mod reachable;
pub(super) mod socket_owner;
pub(crate) mod stream;
