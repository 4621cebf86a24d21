//! Transport between ranks that are threads of one process. Use it for tests, examples, and several replicas in one
//! program.
//!
//! A message in the receiver's mailbox holds the sender's view. The receiver copies or reduces straight from that view,
//! so that bytes move once and without system calls.

#![allow(clippy::disallowed_methods, reason = "a backend")]

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::{ThreadBackend, ThreadFabric};
