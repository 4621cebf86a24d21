//! The sockets of one rank, and the place where it parks: one epoll for all of them and a doorbell.

use super::link::{Readiness, TcpLink};
use crate::doorbell::{Doorbell, timespec};
use crate::error::{Error, Result};
use crate::stream::{Read, Wire};
use crate::transport::TransportKind;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Most events taken from the kernel at once; further ones are returned the next time.
const EVENTS: usize = 64;
/// Name of the doorbell among the events; a socket has the name `peer << SOCKET_BITS | socket`.
const BELL: u64 = u64::MAX;
/// Bits of the socket's number in the name of an event.
const SOCKET_BITS: u32 = 16;

/// Byte streams over the sockets of one rank.
pub(crate) struct TcpWire {
    /// Links by rank; none to this rank, to a peer that has closed, or to one that is reached otherwise.
    links: Vec<Option<TcpLink>>,
    epoll: OwnedFd,
    events: Vec<Event>,
    /// Doorbell that `epoll` watches, kept alive for it.
    _bell: Arc<Doorbell>,
    /// Set if the bell rang outside of a park, which it then ends.
    rung: bool,
}

impl TcpWire {
    /// Creates a wire with these links by rank; `bell` ends its parks.
    pub(crate) fn new(links: Vec<Option<TcpLink>>, bell: Arc<Doorbell>) -> Result<Self> {
        // Edge-triggered: the kernel reports changes, and the links keep the state.
        let watch = || -> rustix::io::Result<OwnedFd> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &*bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
            let news = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            for (peer, link) in links.iter().enumerate() {
                for (socket, descriptor) in link.iter().flat_map(TcpLink::descriptors).enumerate() {
                    let name = (peer as u64) << SOCKET_BITS | socket as u64;
                    epoll::add(&epoll, descriptor, EventData::new_u64(name), news)?;
                }
            }
            Ok(epoll)
        };
        let epoll = watch().map_err(|cause| {
            Error::system("watch sockets", cause, "raise the limits of open files and of epoll watches")
        })?;
        Ok(TcpWire { links, epoll, events: Vec::with_capacity(EVENTS), _bell: bell, rung: false })
    }

    /// Waits for changes, at most for `at_most`, and passes them on to the links.
    fn poll_events(&mut self, at_most: Duration) {
        self.events.clear();
        // An interrupted or refused wait is an early return: the caller looks for work and may park again.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timespec(at_most)));
        for Event { flags, data } in self.events.drain(..) {
            let name = data.u64();
            if name == BELL {
                self.rung = true;
                continue;
            }
            let end = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            let read = end || flags.contains(EventFlags::IN);
            let write = end || flags.contains(EventFlags::OUT);
            if let Some(Some(link)) = self.links.get_mut((name >> SOCKET_BITS) as usize) {
                link.update_readiness(
                    (name & ((1 << SOCKET_BITS) - 1)) as usize,
                    Readiness { read, write, end },
                );
            }
        }
    }
}

/// Returns the error for a peer without a link.
fn closed() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Wire for TcpWire {
    fn path(&self, _peer: usize) -> TransportKind {
        TransportKind::Tcp
    }

    fn poll_readiness(&mut self) {
        self.poll_events(Duration::ZERO);
    }

    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.links[peer].as_mut().ok_or_else(closed)?.write(parts)
    }

    fn committed(&self, peer: usize) -> usize {
        self.links[peer].as_ref().map_or(0, TcpLink::committed)
    }

    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<Read> {
        let link = self.links[peer].as_mut().ok_or_else(closed)?;
        let read = link.read(into);
        if matches!(read, Ok(Read::End) | Err(_)) {
            self.links[peer] = None;
        }
        read
    }

    fn park(&mut self, at_most: Duration) {
        let ready = self.rung || self.links.iter().flatten().any(TcpLink::is_readable);
        if !ready {
            self.poll_events(at_most);
        }
        self.rung = false;
    }
}
