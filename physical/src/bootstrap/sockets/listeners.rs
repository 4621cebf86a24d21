//! Listening sockets at several addresses of this host, with a common wait.
//!
//! A name may resolve to addresses of both families, and another host may reach only one of them. Therefore a
//! listener at a name listens at all of its addresses that belong to this host.

use crate::bootstrap::QUEUE;
use crate::bootstrap::handshake::poller::Poller;
use crate::runtime;
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Listener whose `accept`, and whose connections, never block.
pub(crate) trait Accept: AsFd {
    /// Type of an accepted connection.
    type Connection: Read + Write + AsFd;

    /// Returns the next connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    fn accept(&self) -> io::Result<Self::Connection>;
}

/// One or more listening sockets. Neither they nor the connections block.
pub(crate) struct Listeners {
    /// The sockets, at least one.
    sockets: Vec<TcpListener>,
    /// Descriptor that is readable whenever one of several sockets is. `None` for one socket.
    all: Option<Poller>,
    /// Number of calls so far, which rotates the first socket to check, so that a flood at one socket cannot hide the
    /// others.
    turn: AtomicUsize,
}

/// Address at which this process cannot listen, and the cause.
#[derive(Debug)]
pub(crate) struct BindError {
    /// The refused address.
    pub(crate) address: SocketAddr,
    /// Error of the system.
    pub(crate) cause: io::Error,
}

impl Listeners {
    /// Listens at those of `addresses` that belong to this host.
    ///
    /// # Errors
    /// The first address that is taken, or one of a different host if none belongs to this one.
    pub(crate) fn bind(addresses: &[SocketAddr]) -> Result<Self, BindError> {
        let mut sockets = Vec::new();
        let mut refused = None;
        for (index, address) in addresses.iter().enumerate() {
            if addresses[..index].contains(address) {
                continue;
            }
            match runtime::listen(*address) {
                Ok(socket) => sockets.push(socket),
                Err(cause) if is_of_another_host(&cause) => {
                    refused = Some(BindError { address: *address, cause })
                }
                Err(cause) => return Err(BindError { address: *address, cause }),
            }
        }
        match (refused, addresses.first()) {
            (Some(refused), _) if sockets.is_empty() => Err(refused),
            (_, Some(first)) => Self::new(sockets).map_err(|cause| BindError { address: *first, cause }),
            (_, None) => {
                let address = ([0, 0, 0, 0], 0).into();
                let cause = io::ErrorKind::InvalidInput.into();
                Err(BindError { address, cause })
            }
        }
    }

    /// Creates listeners from listening sockets.
    pub(crate) fn new(sockets: Vec<TcpListener>) -> io::Result<Self> {
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            rustix::net::listen(socket, QUEUE)?;
        }
        let all = if sockets.len() == 1 { None } else { Some(watch(&sockets)?) };
        Ok(Listeners { sockets, all, turn: AtomicUsize::new(0) })
    }

    /// Returns the next connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub(crate) fn accept(&self) -> io::Result<TcpStream> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut outcome = Err(io::ErrorKind::WouldBlock.into());
        for index in 0..self.sockets.len() {
            outcome = self.sockets[turn.wrapping_add(index) % self.sockets.len()].accept();
            if !matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                break;
            }
        }
        let (stream, _) = outcome?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Returns the addresses at which the sockets listen.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.sockets.iter().map(TcpListener::local_addr).collect()
    }

    /// Returns the sockets as descriptors.
    pub(crate) fn into_files(self) -> Vec<OwnedFd> {
        self.sockets.into_iter().map(OwnedFd::from).collect()
    }
}

/// Returns true if an address was refused because it belongs to a different host.
fn is_of_another_host(cause: &io::Error) -> bool {
    // The second is the error of a host without IPv6 for its addresses.
    matches!(Errno::from_io_error(cause), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

/// Creates a poller that is readable whenever one of the sockets is.
fn watch(sockets: &[TcpListener]) -> io::Result<Poller> {
    let all = Poller::new()?;
    for (number, socket) in sockets.iter().enumerate() {
        all.watch(socket, number as u64)?;
    }
    Ok(all)
}

impl AsFd for Listeners {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_ref().map_or_else(|| self.sockets[0].as_fd(), AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags};
    use std::time::Duration;

    fn addresses(ips: &[&str], port: u16) -> Vec<SocketAddr> {
        ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), port)).collect()
    }

    /// Waits until a connection is announced, and returns it.
    fn next(listeners: &Listeners) -> TcpStream {
        let mut sources = [PollFd::new(listeners, PollFlags::IN)];
        assert_eq!(runtime::poll(&mut sources, Some(Duration::from_secs(20))).unwrap(), 1);
        listeners.accept().unwrap()
    }

    #[test]
    fn callers_at_every_address_of_this_host_are_heard() {
        // The second is of a block that is kept for documentation; a machine may have no ::1.
        let listeners =
            Listeners::bind(&addresses(&["127.0.0.1", "192.0.2.1", "127.0.0.2", "127.0.0.1", "::1"], 0))
                .unwrap();
        let bound = listeners.addresses().unwrap();
        assert!(bound.len() == 2 + usize::from(bound.iter().any(SocketAddr::is_ipv6)), "{bound:?}");
        for address in bound {
            assert_eq!(listeners.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            let caller = TcpStream::connect(address).unwrap();
            assert_eq!(next(&listeners).peer_addr().unwrap(), caller.local_addr().unwrap());
        }
    }

    #[test]
    fn a_flood_at_one_address_hides_no_other() {
        let listeners = Listeners::bind(&addresses(&["127.0.0.1", "127.0.0.2"], 0)).unwrap();
        let bound = listeners.addresses().unwrap();
        let _flood: Vec<_> = (0..10).map(|_| TcpStream::connect(bound[0]).unwrap()).collect();
        let caller = TcpStream::connect(bound[1]).unwrap().local_addr().unwrap();
        assert!((0..2).any(|_| next(&listeners).peer_addr().unwrap() == caller));
    }

    #[test]
    fn one_address_that_is_taken_is_refused_and_named() {
        // Another program may have the same port at the other address: then the next is tried.
        let is_named = (0..20).any(|_| {
            let first = TcpListener::bind("127.0.0.2:0").unwrap();
            let taken = first.local_addr().unwrap();
            let both = addresses(&["127.0.0.1", "127.0.0.2"], taken.port());
            let refused = Listeners::bind(&both).err().unwrap();
            assert_eq!(refused.cause.kind(), io::ErrorKind::AddrInUse);
            refused.address == taken
        });
        assert!(is_named);
        let refused = Listeners::bind(&addresses(&["192.0.2.1"], 9)).err().unwrap();
        assert_eq!(refused.cause.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
