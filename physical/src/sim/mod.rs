//! The simulated cluster: the ranks of a job as fibers of one thread, on a network in virtual time. Use it to study
//! an algorithm on a cluster that you do not have.
//!
//! The code of a rank is the same as on a real cluster: it gets a [`World`](crate::World), opens endpoints, and
//! computes. Waits happen in virtual time, which passes immediately; computations are real, and take the time given
//! by [`Rates`]. A run follows from its arguments, its seed and the results of its ranks, to the last bit: on every
//! machine, if those are equal.
//!
//! `simulation` runs ranks. `cluster`, `shape`, `topology` and `link` describe the cluster, `fault` the failures,
//! `rates` the times. `schedule` has the clock and selects the running fiber, `agenda` the events, `wires` the
//! transfer of messages (`messages`), `routes` their routes, `flows` their shares of links, and `mail` their arrival.
//! `connect` and `endpoint` are the transport, as in every backend, and `operations` the running operations of an
//! endpoint. `job` starts ranks as processes, which meet and monitor each other over `sockets`.

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
