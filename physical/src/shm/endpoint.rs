//! One rank's end of the rings: writes into the peers' segments, reads from its own, sleeps on its doorbell.

use super::link::Segment;
use crate::health::Health;
use crate::stream::{Read, Wire};
use crate::transport::Bell;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct ShmWire {
    rank: usize,
    /// By rank; this rank's own is the one it reads from.
    segments: Vec<Arc<Segment>>,
    health: Arc<Health>,
    /// Count of the doorbell when this rank last looked for work.
    heard: u32,
}

impl ShmWire {
    pub(super) fn new(rank: usize, segments: Vec<Arc<Segment>>, health: Arc<Health>) -> Self {
        ShmWire { rank, segments, health, heard: 0 }
    }
}

impl Wire for ShmWire {
    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.segments[peer].ring_of(self.rank).write(parts)?;
        if written > 0 {
            self.segments[peer].ring();
        }
        Ok(written)
    }

    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<Read> {
        // Asked first: what a peer wrote before it left is in the ring by now.
        let left = self.health.has_left(peer);
        let ring = self.segments[self.rank].ring_of(peer);
        let read = ring.read(into)?;
        if read == 0 {
            return Ok(if left { Read::End } else { Read::Nothing });
        }
        if ring.take_blocked() {
            self.segments[peer].ring();
        }
        Ok(Read::Bytes(read))
    }

    fn park(&mut self, _unsent: &[usize], at_most: Duration) {
        // A full ring has raised its flag, so room rings the bell as bytes do.
        let bell = self.segments[self.rank].bell();
        if bell == self.heard {
            self.segments[self.rank].sleep(bell, at_most);
        }
        self.heard = self.segments[self.rank].bell();
    }
}
