//! The simulated cluster: the ranks of a job as fibers of one thread, on a network in virtual time. Use it to study
//! an algorithm on a cluster that you do not have.
//!
//! The code of a rank is the same as on a real cluster: it gets a [`World`](crate::World), opens endpoints, and
//! computes. Waits happen in virtual time, which passes immediately; computations are real, and take the time given
//! by [`Rates`]. A run follows from its arguments, its seed and the results of its ranks, to the last bit: on every
//! machine, if those are equal.
//!
//! | module | content |
//! |---|---|
//! | `simulation` | runs the ranks |
//! | `cluster` | hosts, links, topology and failures of the cluster |
//! | `network` | times, routes, shares of links, and the transfer of messages |
//! | `schedule` | the clock, the events, and the running fiber; ranks as processes of a job |
//! | `mailbox`, `phantom` | messages that have arrived; buffers without contents |
//! | `connect`, `endpoint`, `operations` | the transport, as in every backend |
//! | `sockets` | the network on which processes of a job meet and monitor each other |

#![allow(clippy::disallowed_methods, reason = "a backend, which gives simulated ranks all of these")]

mod cluster;
mod connect;
mod endpoint;
mod mailbox;
mod network;
mod operations;
mod phantom;
mod schedule;
mod simulation;
mod sockets;
#[cfg(test)]
mod tests;

pub use cluster::fault::{Cut, Fault, FaultKind};
pub use cluster::link::{LinkSpec, bandwidth, duration};
pub use cluster::shape::Shape;
pub use cluster::topology::Topology;
pub use cluster::{Cluster, HostSpec, MAX_RANKS};
pub use network::rates::Rates;
#[doc(hidden)]
pub use network::wires::Flaw;
pub use phantom::Phantom;
pub use schedule::job::{Ended, Job, Played};
pub use simulation::{Outcome, Simulation};
