//! Frames over byte streams: the common part of shared-memory rings and TCP sockets.
//!
//! A backend implements [`Link`], which writes bytes to one peer and reads some, and [`Parking`], where the rank waits
//! for all its links. [`endpoint::StreamEndpoint`] builds a [`Transport`](crate::transport::Transport) on them. Per
//! pair of ranks and direction, the stream is
//!
//! ```text
//! stream  = frame*
//! frame   = header payload
//! header  = length:u64 tag:16 fingerprint:16 check:u32 magic:u32     (48 bytes, little-endian)
//! payload = byte × length
//! ```

pub(crate) mod endpoint;
pub(crate) mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod inbox;
mod outbox;

use crate::transport::TransportKind;
use std::io::{self, IoSlice};
use std::time::Duration;

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Number of bytes that were read.
    Bytes(usize),
    /// No bytes have arrived.
    Nothing,
    /// The other side is closed and all bytes that it sent were read.
    End,
}

/// Byte streams to and from one peer. No call blocks.
pub(crate) trait Link {
    /// Returns the transport that carries the bytes.
    fn path(&self) -> TransportKind;

    /// Writes a prefix of `parts` and returns its length, 0 if the stream is full.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Returns the number of bytes that must be written next, although no write has counted them.
    fn committed(&self) -> usize {
        0
    }

    /// Reads into a prefix of `into`, which is not empty.
    fn read(&mut self, into: &mut [u8]) -> io::Result<ReadOutcome>;
}

/// Parking place of one rank until one of its links is ready. Only `park` blocks.
pub(crate) trait Parking {
    /// Updates the readiness of the links, if this takes a system call. Called before a round of reads and writes.
    fn poll_readiness(&mut self) {}

    /// Returns true if another rank is known to run on the core of this thread, after an attempt to move to a core with
    /// fewer.
    fn shares_core(&mut self) -> bool {
        false
    }

    /// Announces a park, so that peers ring from now on. The caller then looks for work once more, and parks only if it
    /// could neither read nor write anything.
    fn announce_park(&mut self) {}

    /// Reverts [`Parking::announce_park`]; `park` does so itself.
    fn end_park(&mut self) {}

    /// Parks until a link has bytes, a full link has free space, or the bell rings. Returns immediately if this has
    /// happened since the last check of the caller.
    fn park(&mut self, at_most: Duration);
}
