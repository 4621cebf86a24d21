//! One rank's end where some peers are reached through memory and others by TCP, and where it waits for both: in the epoll
//! of the sockets, which the peers on its host interrupt by its eventfd, if it sleeps.

use super::link::Link;
use crate::shm::ShmWire;
use crate::stream::{Read, Wire};
use crate::tcp::TcpWire;
use crate::transport::TransportKind;
use std::io::{self, IoSlice};
use std::time::Duration;

/// Rounds of reads and writes for each time that the sockets are asked: the system call takes as long as several looks at
/// the rings.
const ROUNDS: u32 = 8;

pub(super) struct MixedWire {
    memory: ShmWire,
    sockets: TcpWire,
    /// By rank.
    links: Vec<Link>,
    round: u32,
}

impl MixedWire {
    /// An end over both; the bell of `sockets` is what wakes this rank in `memory`.
    pub(super) fn new(memory: ShmWire, sockets: TcpWire, links: Vec<Link>) -> Self {
        MixedWire { memory, sockets, links, round: 0 }
    }
}

impl Wire for MixedWire {
    fn path(&self, peer: usize) -> TransportKind {
        match self.links[peer] {
            Link::Memory(place) => self.memory.path(place),
            Link::Sockets => self.sockets.path(peer),
        }
    }

    fn look(&mut self) {
        self.round = self.round.wrapping_add(1);
        if self.round.is_multiple_of(ROUNDS) {
            self.sockets.look();
        }
    }

    fn taken(&self, peer: usize) -> usize {
        match self.links[peer] {
            Link::Memory(place) => self.memory.taken(place),
            Link::Sockets => self.sockets.taken(peer),
        }
    }

    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.links[peer] {
            Link::Memory(place) => self.memory.write(place, parts),
            Link::Sockets => self.sockets.write(peer, parts),
        }
    }

    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<Read> {
        match self.links[peer] {
            Link::Memory(place) => self.memory.read(place, into),
            Link::Sockets => self.sockets.read(peer, into),
        }
    }

    fn shares_core(&mut self) -> bool {
        self.memory.shares_core()
    }

    fn lie_down(&mut self) {
        self.memory.lie_down();
        // The look that follows is the last one before sleep.
        self.round = ROUNDS - 1;
    }

    fn get_up(&mut self) {
        self.memory.get_up();
    }

    fn park(&mut self, at_most: Duration) {
        if !self.memory.was_rung() {
            self.sockets.park(at_most);
        }
        self.get_up();
    }
}
