//! One rank's end of its sockets, and the place where it sleeps: `poll` on all of them and a doorbell.

use super::link::Link;
use crate::doorbell::{Doorbell, timespec};
use crate::stream::{Read, Wire};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

pub(super) struct TcpWire {
    /// By rank; none to itself, none to a peer that has closed.
    links: Vec<Option<Link>>,
    bell: Arc<Doorbell>,
}

impl TcpWire {
    pub(super) fn new(links: Vec<Option<Link>>, bell: Arc<Doorbell>) -> Self {
        TcpWire { links, bell }
    }
}

fn closed() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

impl Wire for TcpWire {
    fn write(&mut self, peer: usize, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.links[peer].as_mut().ok_or_else(closed)?.write(parts)
    }

    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<Read> {
        let link = self.links[peer].as_mut().ok_or_else(closed)?;
        let read = link.read(into);
        // A socket that has ended would stay readable and end every sleep.
        if matches!(read, Ok(Read::End) | Err(_)) {
            self.links[peer] = None;
        }
        read
    }

    fn park(&mut self, unsent: &[usize], at_most: Duration) {
        let mut sources = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        for (peer, link) in self.links.iter().enumerate() {
            let Some(link) = link else { continue };
            let room = if unsent.contains(&peer) { PollFlags::OUT } else { PollFlags::empty() };
            sources.push(PollFd::new(link, PollFlags::IN | room));
        }
        // An interrupted or refused poll is an early return: the caller looks for work and may come back.
        let _ = poll(&mut sources, Some(&timespec(at_most)));
        self.bell.hush();
    }
}
