//! hexagram: communication for distributed SGD.
//!
//! The facade: what `cargo add hexagram` gives. Each module is a layer and imports only those below it; the README has
//! the picture and the reading path.

mod sampling;

pub use hexagram_algorithms as algorithms;
pub use hexagram_logical as logical;
pub use hexagram_physical as physical;
pub use hexagram_sampler as sampler;

pub use hexagram_logical::{
    Buffer, Communicator, DType, Element, Error, JoinOptions, ReduceOp, Result, TransportKind, World, testing,
};
pub use hexagram_logical::{Hierarchy, asynchronous, centralized, codec, decentralized, encoding};
pub use hexagram_physical::TlsFiles;
pub use hexagram_physical::bootstrap::{Launcher, Placement, Rendezvous};
pub use hexagram_physical::launch;
pub use hexagram_sampler::DistributedSampler;
pub use sampling::Sampling;

/// The README's Rust, compiled and run as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
