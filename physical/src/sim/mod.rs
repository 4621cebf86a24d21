//! The simulated cluster: the ranks of a job as fibers of one thread, on a network whose time is virtual. Use it to see
//! what an algorithm does on a cluster that you do not have.
//!
//! The code of a rank is the same as anywhere: it gets a [`World`](crate::World), opens endpoints, and computes. What waits,
//! waits in virtual time, which passes at once; what computes does so for real, and takes the time that [`Rates`] say. A
//! run follows from its arguments, its seed and what its ranks compute, to the last bit: on every machine, if that is.
//!
//! `simulation` runs ranks. `cluster`, `shape`, `topology` and `link` describe what is simulated, `fault` what goes wrong,
//! `rates` what takes time. `schedule` has the clock and says which fiber runs, `agenda` what happens when, `wires` how
//! messages (`parcels`) travel, `routes` which way, `flows` how they share links, and `mail` where they arrive. `connect`
//! and `endpoint` are the transport, as in every backend, and `operations` what an endpoint has under way. `job` starts
//! ranks as processes, which meet and watch each other over `sockets`.

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
