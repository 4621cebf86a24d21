//! Endpoint of one rank that reaches some peers through shared memory and others by TCP. It parks for both: in the
//! epoll of the sockets, which the peers on its host interrupt by its eventfd if it is parked.

use super::link::MixedLink;
use crate::backends::shm::ShmParking;
use crate::backends::stream::Parking;
use crate::backends::stream::endpoint::StreamEndpoint;
use crate::backends::tcp::TcpParking;
use std::time::Duration;

/// Rounds of reads and writes for each poll of the sockets: the system call takes the time of several checks of the
/// rings.
const ROUNDS: u32 = 8;

/// Endpoint over rings and sockets.
pub(super) type MixedEndpoint = StreamEndpoint<MixedLink, MixedParking>;

/// Place where one rank parks until a ring or a socket is ready.
pub(super) struct MixedParking {
    memory: ShmParking,
    sockets: TcpParking,
    round: u32,
}

impl MixedParking {
    /// Creates a place for both; the bell of `sockets` is the one that wakes this rank in `memory`.
    pub(super) fn new(memory: ShmParking, sockets: TcpParking) -> Self {
        MixedParking { memory, sockets, round: 0 }
    }
}

impl Parking for MixedParking {
    fn poll_readiness(&mut self) {
        self.round = self.round.wrapping_add(1);
        if self.round.is_multiple_of(ROUNDS) {
            self.sockets.poll_readiness();
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
