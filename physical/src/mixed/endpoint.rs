//! The byte streams of one rank that reaches some peers through shared memory and others by TCP. It parks for both: in
//! the epoll of the sockets, which the peers on its host interrupt by its eventfd if it is parked.

use super::link::PeerLink;
use crate::shm::ShmWire;
use crate::stream::{Read, Wire};
use crate::tcp::TcpWire;
use crate::transport::TransportKind;
use std::io::{self, IoSlice};
use std::time::Duration;

/// Rounds of reads and writes for each poll of the sockets: the system call takes as long as several looks at the
/// rings.
const ROUNDS: u32 = 8;

/// Byte streams over rings and sockets.
pub(super) struct MixedWire {
    memory: ShmWire,
    sockets: TcpWire,
    /// Links by rank.
    links: Vec<PeerLink>,
    round: u32,
}

impl MixedWire {
    /// Creates a wire over both; the bell of `sockets` is the one that wakes this rank in `memory`.
    pub(super) fn new(memory: ShmWire, sockets: TcpWire, links: Vec<PeerLink>) -> Self {
        MixedWire { memory, sockets, links, round: 0 }
    }
}

impl Wire for MixedWire {
    fn path(&self, peer: usize) -> TransportKind {
        match self.links[peer] {
            PeerLink::Memory(place) => self.memory.path(place),
            PeerLink::Sockets => self.sockets.path(peer),
        }
    }

    fn poll_readiness(&mut self) {
        self.round = self.round.wrapping_add(1);
        if self.round.is_multiple_of(ROUNDS) {
            self.sockets.poll_readiness();
        }
    }

    fn committed(&self, peer: usize) -> usize {
        match self.links[peer] {
            PeerLink::Memory(place) => self.memory.committed(place),
            PeerLink::Sockets => self.sockets.committed(peer),
        }
    }

    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.links[peer] {
            PeerLink::Memory(place) => self.memory.write(place, parts),
            PeerLink::Sockets => self.sockets.write(peer, parts),
        }
    }

    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<Read> {
        match self.links[peer] {
            PeerLink::Memory(place) => self.memory.read(place, into),
            PeerLink::Sockets => self.sockets.read(peer, into),
        }
    }

    fn shares_core(&mut self) -> bool {
        self.memory.shares_core()
    }

    fn announce_park(&mut self) {
        self.memory.announce_park();
        // The next poll is the last one before sleep.
        self.round = ROUNDS - 1;
    }

    fn end_park(&mut self) {
        self.memory.end_park();
    }

    fn park(&mut self, at_most: Duration) {
        if !self.memory.was_rung() {
            self.sockets.park(at_most);
        }
        self.end_park();
    }
}
