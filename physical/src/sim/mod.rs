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
//! transfer of messages (`parcels`), `routes` their routes, `flows` their shares of links, and `mail` their arrival.
//! `connect` and `endpoint` are the transport, as in every backend, and `operations` the running operations of an
//! endpoint. `job` starts ranks as processes, which meet and monitor each other over `sockets`.

#![allow(clippy::disallowed_methods, reason = "a backend, which gives simulated ranks all of these")]

mod agenda;
mod cluster;
mod connect;
mod endpoint;
mod fault;
mod fiber;
mod flows;
mod job;
mod link;
mod mail;
mod operations;
mod parcels;
mod phantom;
mod rates;
mod routes;
mod schedule;
mod shape;
mod simulation;
mod sockets;
mod statement;
#[cfg(test)]
mod tests;
mod topology;
mod wires;

pub use cluster::{Cluster, HostSpec, MAX_RANKS};
pub use fault::{Cut, Fault, FaultKind};
pub use job::{Ended, Job, Played};
pub use link::{LinkSpec, bandwidth, duration};
pub use phantom::Phantom;
pub use rates::Rates;
pub use shape::Shape;
pub use simulation::{Outcome, Simulation};
pub use topology::Topology;
#[doc(hidden)]
pub use wires::Flaw;
