//! hexagram: communication for distributed SGD.
//!
//! This crate re-exports the others: [`physical`] moves bytes, [`logical`] has the primitives, [`algorithms`] the
//! algorithms and the engine that runs them, [`sampler`] the samplers and the loader. Names that most programs need are
//! here as well. To begin, [`testing::spawn`] runs ranks as threads, and [`World::join`] makes this process a rank of a
//! job.
//!
//! ```
//! use hexagram::testing::spawn;
//! use hexagram::{ReduceOp, TransportKind};
//!
//! // Four ranks as threads of this process, which share memory as processes do.
//! let sums = spawn(TransportKind::Shm, 4, |comm| {
//!     let mut gradient = [comm.rank() as f32, 1.0];
//!     comm.blocking().all_reduce(&mut gradient, ReduceOp::Sum)?;
//!     Ok(gradient)
//! })?;
//! assert_eq!(sums, [[6.0, 4.0]; 4]);
//! # Ok::<(), hexagram::Error>(())
//! ```
//!
//! # Features
//! None is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `tls` | control and TCP connections inside TLS | a C compiler |
//! | `mpi` | the `mpi` transport: ranks that mpirun starts and MPI connects | mpicc and libclang |
//! | `launch` | the launcher: programs that start their own ranks as processes | |
//! | `sim` | simulated clusters: ranks as fibers, in virtual time | |
//! | `executor` | communicators that any number of threads share | |
//! | `testing` | tests of transports, devices and kernels of your own: `physical::testing` | |
//! | `cuda` | the device `cuda`: memory and arithmetic of NVIDIA GPUs | to build, nothing; to run, the driver |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod sampling;
mod uploads;

pub use hexagram_algorithms as algorithms;
pub use hexagram_logical as logical;
pub use hexagram_physical as physical;
pub use hexagram_sampler as sampler;

pub use hexagram_algorithms::{
    Adam, AdamW, Algorithm, AnyAlgorithm, Autotune, Buffers, Checkpoints, DataParallel, EngineOptions,
    GradientAllReduce, Hooks, LossScale, Mode, Optimizer, Order, Parameter, ParameterGroup, Record, Sgd,
    Trace, Unused,
};
pub use hexagram_logical::{
    Bool, Buffer, Communicator, DType, Element, Error, JoinOptions, Queue, ReduceOp, Result, TransportKind,
    World, testing,
};
pub use hexagram_logical::{Hierarchy, asynchronous, centralized, codec, decentralized, encoding};
pub use hexagram_physical::TlsFiles;
pub use hexagram_physical::bootstrap::{Launcher, Placement, Rendezvous, Store};
#[cfg(feature = "cuda")]
pub use hexagram_physical::device::cuda;
pub use hexagram_sampler::loader::{DataLoader, LoaderOptions};
pub use hexagram_sampler::{DistributedOptions, DistributedSampler};
pub use sampling::Sampling;
pub use uploads::{Pinned, Upload, Uploaded, Uploads};

/// Ranks of this program: one that a launcher has started, or all of them as threads; with the feature `launch`, also as
/// processes.
pub mod launch {
    #[cfg(feature = "launch")]
    pub use hexagram_launch::*;
    pub use hexagram_physical::ranks::*;
}

/// The Rust programs of the README and of two pages, compiled and run as documentation tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct ReadmePage;
    #[doc = include_str!("../docs/library.md")]
    struct LibraryPage;
    #[doc = include_str!("../docs/sampling.md")]
    struct SamplingPage;
}
