//! hexagram's physical layer: it moves bytes between the ranks of one world, over threads, shared memory, TCP or
//! MPI.
//!
//! Use this crate to write a transport, or to study the cost of a message. Algorithms and training programs never
//! need it directly: they use the communicator of the logical layer.
//!
//! Reading order: [`world`] (how ranks find each other), [`transport`] (the trait: post, poll, cancel), [`operation`]
//! (its future, deadlines, failures), [`memory`] (counted buffers), [`native`] (collectives of a backend), then a
//! backend: `thread`, `shm`, `tcp`, `mixed` or `mpi`, whose folders hold the same files: `connect` (how two ranks get
//! their link), `link` (the connection of two ranks), `endpoint` (the end of one rank).
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

#[cfg(any(test, feature = "cuda", feature = "testing"))]
mod alarm;
mod backends;
mod boolean;
pub mod bootstrap;
pub mod codec;
mod deadline;
pub mod device;
mod doorbell;
pub mod drive;
pub mod dtype;
mod environment;
pub mod error;
pub mod fingerprint;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod hash;
pub mod health;
pub mod input;
#[cfg(feature = "cuda")]
mod ipc;
mod landing;
#[doc(hidden)]
pub mod launcher;
#[cfg(test)]
#[cfg(feature = "cuda")]
mod left_out_waits;
mod library;
mod limits;
mod lock;
mod matching;
pub mod memory;
mod memory_file;
mod message;
mod mixed;
#[cfg(feature = "mpi")]
mod mpi;
pub mod native;
#[cfg(feature = "cuda")]
pub mod nccl;
pub mod operation;
pub mod output;
mod path;
mod patience;
mod process;
pub mod ranks;
pub mod runtime;
mod shm;
#[cfg(feature = "sim")]
pub mod sim;
mod socket;
mod staging;
pub mod stdout;
pub mod stopwatch;
mod stream;
pub mod tag;
mod tcp;
pub mod testing;
mod thread;
mod tickets;
pub mod transport;
mod waits;
pub mod world;

pub use boolean::Bool;
pub use device::{Device, Queue};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{Error, Peer, Result};
pub use health::Vigilance;
pub use memory::Buffer;
pub use socket::TlsFiles;
pub use transport::{Transport, TransportKind};
pub use world::{JoinOptions, World};
