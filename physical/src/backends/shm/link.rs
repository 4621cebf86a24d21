//! The link between two processes of one host: a ring in the segment of each, into which the other writes.

use super::segment::Segment;
use crate::backends::stream::{Link, ReadOutcome};
use crate::control::health::Health;
use crate::transport::TransportKind;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Rings to and from one peer.
pub(crate) struct ShmLink {
    own: Arc<Segment>,
    theirs: Arc<Segment>,
    /// Rank of the peer in the world.
    peer: usize,
    health: Arc<Health>,
}

impl ShmLink {
    /// Creates the link between the owners of two segments, this rank and `peer`.
    pub(super) fn new(own: Arc<Segment>, theirs: Arc<Segment>, peer: usize, health: Arc<Health>) -> Self {
        ShmLink { own, theirs, peer, health }
    }
}

impl Link for ShmLink {
    fn path(&self) -> TransportKind {
        TransportKind::Shm
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.theirs.ring_of(self.own.place()).write(parts)?;
        if written > 0 {
            self.theirs.unpark();
        }
        Ok(written)
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<ReadOutcome> {
        // Checked first: everything that a peer wrote before it left is in the ring by now.
        let left = self.health.has_left(self.peer);
        let ring = self.own.ring_of(self.theirs.place());
        let read = ring.read(into)?;
        if read == 0 {
            return Ok(if left { ReadOutcome::End } else { ReadOutcome::Nothing });
        }
        if ring.take_blocked() {
            self.theirs.unpark();
        }
        Ok(ReadOutcome::Bytes(read))
    }
}
