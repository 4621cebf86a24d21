//! Ranks as processes that MPI started and MPI connects. When you would want it: on a cluster whose network MPI knows
//! best, with the launcher that is there already (`mpirun`).
//!
//! Every channel has a communicator of its own, and one more for each of its first lanes, on which MPI's own collectives
//! run. Messages between two ranks travel as follows; MPI keeps those of equal tag in order.
//!
//! ```text
//! letter   tag 0       header:48 payload         small messages: one MPI message
//!                    | header:48 tag:u32         large ones: the payload follows on a tag of its own
//!                    | CLOSE next:u64…        the sender has closed its end; it took part in the collectives
//!                                                of each lane before its next
//! payload  tag 1…      pieces of 1 MiB           straight out of one view into the other
//! ```
//!
//! A payload stays with its sender until the receive is posted; so nothing is staged, and counts never overflow an `int`.
//! The header is the one of the stream transports, and is checked before a byte lands.
//!
//! Before MPI's own collectives begin, ranks exchange their fingerprints by letters: at the first use of each, or always
//! ([`Check`](crate::native::Check)).
//!
//! Memory that MPI works on is never given back before MPI is done with it: requests live in a
//! [`RequestSet`](link::RequestSet) together with what they touch, and one that is dropped too early leaks. Borrowed memory,
//! which has to go back to its owner after a failure too, is therefore copied through staging.

mod collectives;
mod connect;
mod endpoint;
mod interface;
mod library;
mod link;
mod operators;
mod payload;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use connect::MpiBackend;
