//! The logical layer of hexagram: the operations of groups of ranks, over any transport.
//!
//! A [`Communicator`] is the membership of one thread in a group of ranks. Its primitives are `async fn`; run them
//! with [`Communicator::block_on`], or use [`Communicator::blocking`] on plain slices. The page of each primitive has
//! its formula, its steps, the bytes that a rank sends, its memory, and whether its result depends on the order of
//! arrival.
//!
//! ```
//! use hexagram_logical::testing::spawn;
//! use hexagram_logical::{ReduceOp, TransportKind};
//!
//! let sums = spawn(TransportKind::Shm, 4, |comm| {
//!     let mut mine = [comm.rank() as f32, 1.0];
//!     comm.blocking().all_reduce(&mut mine, ReduceOp::Sum)?;
//!     Ok(mine)
//! });
//! assert_eq!(sums.unwrap(), [[6.0, 4.0]; 4]);
//! ```
//!
//! # Features
//! No feature is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `mpi` | the `mpi` transport: ranks that mpirun starts and MPI connects | mpicc and libclang |
//!
//! # Costs
//!
//! Bytes below are payload: `S` is the size of the buffer, `n` the number of ranks; every message adds
//! [`HEADER_BYTES`]. Over shared memory, small operations and those on registered memory
//! ([`Communicator::registered`]) need no messages: a rank posts [`NOTICE_BYTES`] and reads the data of the others.
//! `World::traffic` counts both. `bytes_sent` is the number of bytes that moved. `payload_sent` is the payload of the
//! documented steps, which is the same on every transport; use it to compare algorithms.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod asynchronous;
mod catalogues;
pub mod centralized;
pub mod codec;
mod communicator;
pub mod decentralized;
pub mod encoding;
#[cfg(feature = "executor")]
pub mod executor;
pub mod options_text;
pub mod testing;

pub use centralized::Hierarchy;
pub use communicator::{Blocking, Call, Channel, Communicator, Part};
pub use hexagram_physical::device;
pub use hexagram_physical::device::Queue;
pub use hexagram_physical::drive;
pub use hexagram_physical::hash;
pub use hexagram_physical::launcher::note_checkpoint;
pub use hexagram_physical::memory::{ReadView, Span, WriteView};
pub use hexagram_physical::native::NOTICE_BYTES;
pub use hexagram_physical::output;
pub use hexagram_physical::runtime;
pub use hexagram_physical::transport::{Bell, HEADER_BYTES, ReceiveMode};
pub use hexagram_physical::{
    Bool, Buffer, DType, Element, Error, HeartbeatOptions, JoinOptions, Peer, ReduceOp, Result,
    TransportKind, World,
};

use std::pin::Pin;

/// Future of a primitive, on the heap: its code is compiled once, in this crate, and not again in each crate that
/// waits for it.
pub type Primitive<'a, T = ()> = Pin<Box<dyn Future<Output = Result<T>> + 'a>>;
