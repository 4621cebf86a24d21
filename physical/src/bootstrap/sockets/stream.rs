//! The listener of a rendezvous and its connections, each a TCP or a unix socket.

use super::listeners::{Accept, Listeners};
use super::local::same_user;
use crate::backends::socket;
use crate::backends::socket::{Socket, Tls};
use crate::runtime::{self, PollFd, PollFlags};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::{self, Timeout};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// Connection between two ranks. A unix socket never leaves its host, and needs no TLS.
pub(crate) enum RankStream {
    /// TCP connection, possibly inside TLS.
    Tcp(Box<dyn Socket>),
    /// Unix connection.
    Local(UnixStream),
}

macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            RankStream::Tcp($inner) => $call,
            RankStream::Local($inner) => $call,
        }
    };
}

impl RankStream {
    /// Sets the timeout of later reads and writes.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        // Zero would mean forever.
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(self, Timeout::Recv, timeout)?;
        Ok(sockopt::set_socket_timeout(self, Timeout::Send, timeout)?)
    }

    /// Waits until `event`, or for the timeout, in a world with a virtual clock, where a timeout of the system does
    /// not pass. Otherwise, and if the stream does not block, returns immediately.
    fn await_event(&self, event: PollFlags, timeout: Timeout) -> io::Result<()> {
        if !runtime::is_replaced() || fcntl_getfl(self)?.contains(OFlags::NONBLOCK) {
            return Ok(());
        }
        let at_most = sockopt::socket_timeout(self, timeout)?;
        match runtime::poll(&mut [PollFd::new(self, event)], at_most)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }

    /// Returns the address by which this process reaches the peer, with port 0, for its own listeners.
    pub(crate) fn interface(&self) -> io::Result<SocketAddr> {
        match self {
            RankStream::Tcp(socket) => socket.tcp().local_addr().map(at_any_port),
            RankStream::Local(_) => Ok((Ipv4Addr::LOCALHOST, 0).into()),
        }
    }
}

impl Read for RankStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.await_event(PollFlags::IN, Timeout::Recv)?;
        either!(self, stream => stream.read(into))
    }
}

impl Write for RankStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.await_event(PollFlags::OUT, Timeout::Send)?;
        either!(self, stream => stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for RankStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }
}

/// Rank 0's listener.
pub(crate) enum Listener {
    /// TCP listeners, and the TLS that connections must use.
    Tcp(Listeners, Option<Tls>),
    /// Unix listener.
    Local(UnixListener),
}

impl Accept for Listener {
    type Connection = RankStream;

    /// Returns the next connection. A unix connection of a different user is rejected.
    fn accept(&self) -> io::Result<RankStream> {
        match self {
            Listener::Tcp(listeners, tls) => {
                Ok(RankStream::Tcp(socket::accepted(listeners.accept()?, tls.as_ref())?))
            }
            Listener::Local(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                same_user(&stream)?;
                Ok(RankStream::Local(stream))
            }
        }
    }
}

impl Listener {
    /// Returns the same listener, whose connections must use `tls`, if it is given.
    pub(crate) fn with_tls(self, tls: Option<Tls>) -> Self {
        match self {
            Listener::Tcp(listeners, _) => Listener::Tcp(listeners, tls),
            local @ Listener::Local(_) => local,
        }
    }

    /// Returns the addresses of the listener, if all are loopback addresses.
    pub(crate) fn loopback_only(&self) -> Option<String> {
        let Listener::Tcp(listeners, _) = self else { return None };
        let bound = listeners.addresses().ok()?;
        let is_loopback = bound.iter().all(|address| address.ip().is_loopback());
        is_loopback.then(|| bound.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" "))
    }
}

/// Returns the address with port 0.
pub(crate) fn at_any_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listeners, _) => listeners.as_fd(),
            Listener::Local(listener) => listener.as_fd(),
        }
    }
}
