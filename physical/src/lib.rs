//! hexagram's physical layer: it moves bytes between the ranks of one world, over threads, shared memory, TCP or
//! MPI.
//!
//! Use this crate to write a transport, or to study the cost of a message. Algorithms and training programs never
//! need it directly: they use the communicator of the logical layer.
//!
//! Reading order: [`world`] (how ranks find each other), [`transport`] (the trait: post, poll, cancel), [`operation`]
//! (its future, deadlines, failures), [`memory`] (counted buffers), [`native`] (collectives of a backend), then a
//! folder of `backends`: `thread`, `shm`, `tcp`, `mixed` or `mpi`. They hold the same files: `connect` (how two ranks
//! get their link), `link` (the connection of two ranks), `endpoint` (the end of one rank).
//!
//! | folder | content |
//! |---|---|
//! | `transport` | the trait of all transports, tags, messages, matching, operations |
//! | `backends` | the transports, and the streams and sockets that they share |
//! | `bootstrap`, `world` | start-up: how ranks find and authenticate each other |
//! | `control` | heartbeats, health, the graph of waits |
//! | `elastic` | worlds whose members change |
//! | `memory`, `device` | counted buffers; devices and their arithmetic |
//! | `device_paths` | the ways of device memory to other ranks: staging, ipc, NCCL |
//! | `runtime`, `waiting` | clocks, threads and sockets; how threads wait |
//! | `system` | limits, streams, variables of the process |
//! | `sim`, `testing` | simulated clusters; helpers of tests |
//!
//! ```
//! use hexagram_physical::testing::spawn;
//! use hexagram_physical::TransportKind;
//!
//! let sizes = spawn(TransportKind::Shm, 3, |world| world.size());
//! assert_eq!(sizes, [3, 3, 3]);
//! ```
//!
//! # Features
//! None is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `tls` | control and TCP connections inside TLS | a C compiler |
//! | `mpi` | the `mpi` transport: ranks that mpirun starts and MPI connects | mpicc and libclang |
//! | `sim` | simulated clusters: ranks as fibers, in virtual time | |
//! | `cuda` | the device `cuda`: memory and arithmetic of NVIDIA GPUs | to build, nothing; to run, the driver |
//! | `testing` | helpers for tests of transports, devices and kernels: [`testing`] | |
//! | `fuzzing` | the decoders of bytes from outside, for the fuzzers of this repository | |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("hexagram runs on Linux: it uses memfd, futex, eventfd and abstract unix sockets");

mod backends;
pub mod bootstrap;
mod control;
pub mod device;
mod device_paths;
mod elastic;
pub mod error;
pub mod memory;
pub mod runtime;
#[cfg(feature = "sim")]
pub mod sim;
mod system;
pub mod testing;
pub mod transport;
mod waiting;
pub mod world;

pub use backends::socket::TlsFiles;
pub use control::health::{self, HeartbeatOptions};
pub use device::{Device, Queue, codec};
#[cfg(feature = "cuda")]
pub use device_paths::nccl;
pub use error::{Error, Peer, Result};
pub use memory::boolean::Bool;
pub use memory::dtype::{self, DType, Element, ReduceOp};
pub use memory::{Buffer, hash};
#[doc(hidden)]
pub use system::launcher;
pub use system::{input, output, stdout};
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use testing::fuzzing;
pub use transport::{Transport, TransportKind, fingerprint, native, operation, ranks, tag};
pub use waiting::{drive, stopwatch};
pub use world::{JoinOptions, World};
