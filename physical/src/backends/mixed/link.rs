//! The link between this rank and another: rings in shared memory, or sockets.

use crate::backends::shm::ShmLink;
use crate::backends::stream::{Link, ReadOutcome};
use crate::backends::tcp::TcpLink;
use crate::transport::TransportKind;
use std::io::{self, IoSlice};

/// Way of reaching a peer.
pub(super) enum MixedLink {
    /// Through shared memory.
    Memory(ShmLink),
    /// By TCP.
    Sockets(TcpLink),
}

impl Link for MixedLink {
    fn path(&self) -> TransportKind {
        match self {
            MixedLink::Memory(link) => link.path(),
            MixedLink::Sockets(link) => link.path(),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            MixedLink::Memory(link) => link.write(parts),
            MixedLink::Sockets(link) => link.write(parts),
        }
    }

    fn committed(&self) -> usize {
        match self {
            MixedLink::Memory(link) => link.committed(),
            MixedLink::Sockets(link) => link.committed(),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<ReadOutcome> {
        match self {
            MixedLink::Memory(link) => link.read(into),
            MixedLink::Sockets(link) => link.read(into),
        }
    }
}
