//! Endpoint of one rank over TCP, and its parking place: one epoll for all its sockets and a doorbell.

use super::link::{Readiness, TcpLink};
use crate::backends::stream::Parking;
use crate::backends::stream::endpoint::StreamEndpoint;
use crate::error::{Error, Result};
use crate::waiting::doorbell::{Doorbell, timespec};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of events per system call; further ones are returned the next time.
const EVENTS: usize = 64;
/// Name of the doorbell among the events; the name of a socket is its index.
const BELL: u64 = u64::MAX;

/// Endpoint of a rank that reaches all others by TCP.
pub(super) type TcpEndpoint = StreamEndpoint<TcpLink, TcpParking>;

/// Parking place of one rank until one of its sockets is ready or its bell rings.
pub(crate) struct TcpParking {
    epoll: OwnedFd,
    events: Vec<Event>,
    /// Readiness of the sockets, which their links have too.
    sockets: Vec<Rc<Readiness>>,
    /// Doorbell that `epoll` watches, kept alive for it.
    _bell: Arc<Doorbell>,
    /// Set if the bell rang outside of a park; it then ends the next park.
    rung: bool,
}

impl TcpParking {
    /// Creates the place for the sockets of these links and a bell.
    pub(crate) fn new(links: &[TcpLink], bell: Arc<Doorbell>) -> Result<Self> {
        let mut sockets = Vec::new();
        // Edge-triggered: the kernel reports changes, and the links keep the state.
        let mut watch = || -> rustix::io::Result<OwnedFd> {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &*bell, EventData::new_u64(BELL), EventFlags::IN | EventFlags::ET)?;
            let news = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            for socket in links.iter().flat_map(TcpLink::sockets) {
                epoll::add(&epoll, socket, EventData::new_u64(sockets.len() as u64), news)?;
                sockets.push(socket.readiness());
            }
            Ok(epoll)
        };
        let epoll = watch().map_err(|cause| {
            Error::system("watch sockets", cause, "raise the limits of open files and of epoll watches")
        })?;
        Ok(TcpParking { epoll, events: Vec::with_capacity(EVENTS), sockets, _bell: bell, rung: false })
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
            let Some(ready) = self.sockets.get(name as usize) else { continue };
            let end = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            ready.report(end || flags.contains(EventFlags::IN), end || flags.contains(EventFlags::OUT), end);
        }
    }
}

impl Parking for TcpParking {
    fn poll_readiness(&mut self) {
        self.poll_events(Duration::ZERO);
    }

    fn park(&mut self, at_most: Duration) {
        if !self.rung {
            self.poll_events(at_most);
        }
        self.rung = false;
    }
}
