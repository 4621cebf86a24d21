//! The tests of the logical layer, one module per subject, in one program, since linking takes longer than compiling.
//! Measurements of the whole process are in a separate program: `memory.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable,
    reason = "a test that cannot go on has failed"
)]

mod background;
mod bits;
mod centralized;
mod codecs;
mod device_codecs;
mod device_sparse;
mod eight;
mod encoded;
mod encoded_gossip;
mod every_codec;
mod executor;
mod gossip;
mod groups;
mod lossy;
mod messages;
mod misuse;
#[cfg(feature = "mpi")]
mod mpi;
mod native;
#[cfg(feature = "cuda")]
mod nccl;
mod pairs;
mod payload;
mod processes;
mod server;
mod topologies;
mod unequal;
mod virtual_time;
mod windows;
mod windows_measured;

use hexagram_logical::testing::{cases, spawn};
use hexagram_logical::{Communicator, Result};

/// Runs a test on every transport with each of these numbers of ranks.
fn matrix(ranks: &[usize], test: impl Fn(&Communicator) -> Result<()> + Sync) {
    for (transport, ranks) in cases(ranks) {
        spawn(transport, ranks, |comm| test(&comm)).unwrap_or_else(|e| panic!("{transport} × {ranks}: {e}"));
    }
}
