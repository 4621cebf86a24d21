//! Ranks as threads of one process. When you would want it: tests, examples, and several replicas in one program.
//!
//! A message is a parcel in the receiver's mailbox that holds the sender's view; the receiver copies or reduces straight
//! from it, so that bytes move once and without system calls.

mod connect;
mod endpoint;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use connect::{ThreadBackend, ThreadFabric};
