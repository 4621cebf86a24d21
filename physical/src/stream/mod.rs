//! Frames over byte streams: what shared-memory rings and TCP sockets have in common.
//!
//! A backend supplies [`Wire`]: write some bytes to a peer, read some, and sleep. [`endpoint::StreamEndpoint`] makes a
//! [`Transport`](crate::transport::Transport) of it. Per pair of ranks and direction, the stream is
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

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Bytes(usize),
    /// Nothing has arrived.
    Nothing,
    /// The other side is closed and everything that it sent was read.
    End,
}

/// Byte streams to all peers, one each way, and a place to sleep until one of them can go on. Never blocks but in `park`.
pub(crate) trait Wire {
    /// By which transport the bytes for `peer` travel.
    fn path(&self, peer: usize) -> TransportKind;

    /// Learns which streams can go on, where that has to be asked of the system. Called before a round of reads and writes.
    fn poll_readiness(&mut self) {}

    /// Writes a prefix of `parts`; 0 if the stream is full.
    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Bytes that have to be written next, although no write has counted them.
    fn committed(&self, _peer: usize) -> usize {
        0
    }

    /// Reads into a prefix of `into`, which is not empty.
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<Read>;

    /// Whether another rank runs on this thread's core, which this thread cannot leave for a free one, as far as the
    /// wire can tell.
    fn shares_core(&mut self) -> bool {
        false
    }

    /// Announces sleep, so that peers ring from now on; whoever calls this looks for work once more before it parks.
    fn announce_park(&mut self) {}

    /// Ends what [`Wire::announce_park`] began; `park` does so by itself.
    fn end_park(&mut self) {}

    /// Sleeps until a stream has bytes, a stream that was full has room, or the bell rings. What the last round of
    /// reads and writes has left undone ends it at once.
    fn park(&mut self, at_most: Duration);
}
