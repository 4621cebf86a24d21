//! Transport between ranks that are processes which MPI started and connects. Use it on a cluster whose network MPI
//! supports best, with its own launcher (`mpirun`).
//!
//! Each channel has a separate communicator, and one for each of its first lanes, for MPI collectives. Messages
//! between two ranks are sent as follows; MPI keeps messages of equal tag in order.
//!
//! ```text
//! eager    tag 0       header:48 payload         small messages: one MPI message
//!                    | header:48 tag:u32         large ones: the payload follows on a tag of its own
//!                    | CLOSE next:u64…           the sender has closed its endpoint; it took part in the collectives
//!                                                of each lane before its next
//! payload  tag 1…      pieces of 1 MiB           straight out of one view into the other
//! ```
//!
//! A large payload stays with its sender until the receive is posted; so MPI does not buffer it, and counts never overflow an
//! `int`. The header is that of the stream transports, and is checked before a byte lands.
//!
//! Before MPI collectives begin, ranks exchange their fingerprints by eager messages: at the first use of each, or
//! always ([`Check`](crate::transport::native::Check)).
//!
//! Memory that MPI uses is never released before MPI is done with it: requests live in a
//! [`RequestSet`](link::RequestSet) together with their memory, and one that is dropped too early leaks that memory.
//! Borrowed memory, which must return to its owner after a failure too, is therefore copied through staging.

#![allow(clippy::disallowed_methods, reason = "a backend")]

mod collectives;
mod connect;
mod eager;
mod endpoint;
mod library;
mod link;
mod operators;
mod payload;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use connect::MpiBackend;
