//! Where the ranks of a job meet: a TCP address, or on one host a name that only this machine knows.

use super::QUEUE;
use super::hall::Accept;
use crate::error::{Error, Result};
use crate::socket::{Socket, Tls};
use rustix::net::sockopt::{self, Timeout};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Address at which rank 0 waits for the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// `host:port`.
    Tcp {
        /// Name or address of rank 0's host.
        host: String,
        /// Port; the next one is taken as well where `agent` says so.
        port: u16,
        /// Whether a launcher's agent may occupy the port, so that the ranks meet at the next one.
        agent: bool,
    },
    /// An abstract unix socket: no file, gone with its process, reachable on this host only.
    Local(String),
    /// A socket that the launcher has bound already and handed to rank 0.
    Inherited(Inherited),
}

/// An open file that a launcher left for this process, and the address at which it listens. Only
/// [`Placement::from_env`](super::Placement::from_env) makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    descriptor: RawFd,
    host: String,
    port: u16,
}

impl Inherited {
    pub(super) fn new(descriptor: RawFd, host: String, port: u16) -> Self {
        Inherited { descriptor, host, port }
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meeting::Tcp { host, port, .. } | Meeting::Inherited(Inherited { host, port, .. }) => {
                write!(f, "{host}:{port}")
            }
            Meeting::Local(name) => write!(f, "unix socket @{name}"),
        }
    }
}

/// A connection between two ranks, of either kind. One that never leaves its host needs no TLS.
pub(crate) enum Stream {
    Tcp(Socket),
    Local(UnixStream),
}

macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inner) => $call,
            Stream::Local($inner) => $call,
        }
    };
}

impl Stream {
    /// Bounds every later read and write.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        // Zero would mean for ever.
        let patience = Some(patience.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(self, Timeout::Recv, patience)?;
        Ok(sockopt::set_socket_timeout(self, Timeout::Send, patience)?)
    }

    /// The interface by which this process reaches the other: where its own listeners belong.
    pub(crate) fn interface(&self) -> io::Result<IpAddr> {
        match self {
            Stream::Tcp(socket) => socket.tcp().local_addr().map(|address| address.ip()),
            Stream::Local(_) => Ok(Ipv4Addr::LOCALHOST.into()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.read(into))
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }
}

/// Rank 0's end of the meeting.
pub(crate) enum Listener {
    Tcp(TcpListener, Option<Tls>),
    Local(UnixListener),
}

impl Accept for Listener {
    type Connection = Stream;

    /// The next newcomer. A local one of another user is turned away.
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener, tls) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(Socket::accepted(stream, tls.as_ref())?))
            }
            Listener::Local(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                same_user(&stream)?;
                Ok(Stream::Local(stream))
            }
        }
    }
}

impl Listener {
    /// The same, for newcomers who speak `tls`, if it is given.
    #[cfg(feature = "mpi")]
    pub(crate) fn inside(self, tls: Option<Tls>) -> Self {
        match self {
            Listener::Tcp(listener, _) => Listener::Tcp(listener, tls),
            local @ Listener::Local(_) => local,
        }
    }

    /// The interface on which rank 0 waits, and on which its data listeners belong; if it waits on all, the one that
    /// `meeting` names.
    pub(crate) fn interface(&self, meeting: &Meeting) -> io::Result<IpAddr> {
        match (self, meeting) {
            (Listener::Local(_), _) => Ok(Ipv4Addr::LOCALHOST.into()),
            (Listener::Tcp(listener, _), Meeting::Inherited(Inherited { host, port, .. })) => {
                let bound = listener.local_addr()?.ip();
                let named = || Ok(addresses(host, *port)?[0].ip());
                if bound.is_unspecified() { named() } else { Ok(bound) }
            }
            (Listener::Tcp(listener, _), _) => listener.local_addr().map(|address| address.ip()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener, _) => listener.as_fd(),
            Listener::Local(listener) => listener.as_fd(),
        }
    }
}

/// Refuses a connection across users: an abstract name is free for anyone on the host to take.
pub(crate) fn same_user(stream: &UnixStream) -> io::Result<()> {
    let theirs = sockopt::socket_peercred(stream)?.uid;
    if theirs == rustix::process::geteuid() {
        return Ok(());
    }
    let what = format!("the other side belongs to user {}", theirs.as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// Address of an abstract unix socket.
pub(crate) fn abstract_address(name: &str) -> io::Result<UnixAddr> {
    UnixAddr::from_abstract_name(name)
}

impl Meeting {
    /// Opens rank 0's end; newcomers from elsewhere have to speak `tls`, if it is given.
    ///
    /// # Errors
    /// [`Error::System`] if the address is taken or not of this host.
    pub(crate) fn listen(&self, tls: Option<Tls>) -> Result<Listener> {
        let bound = match self {
            Meeting::Tcp { host, port, agent } => {
                let first = bind(host, *port);
                let taken = |outcome: &io::Result<TcpListener>| matches!(outcome, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
                let outcome = if *agent && taken(&first) { bind(host, port.wrapping_add(1)) } else { first };
                outcome.map(|listener| Listener::Tcp(listener, tls))
            }
            Meeting::Local(name) => {
                abstract_address(name).and_then(|addr| UnixListener::bind_addr(&addr)).map(Listener::Local)
            }
            Meeting::Inherited(Inherited { descriptor, port, .. }) => {
                inherit(*descriptor, *port).map(|listener| Listener::Tcp(listener, tls))
            }
        };
        let listener = bound.and_then(|listener| {
            rustix::io::ioctl_fionbio(&listener, true)?;
            rustix::net::listen(&listener, QUEUE)?;
            Ok(listener)
        });
        listener.map_err(|cause| {
            let remedy = match cause.kind() {
                io::ErrorKind::AddrInUse => "another program has this address; choose another port",
                io::ErrorKind::AddrNotAvailable => "rank 0 must run on the host that this address names",
                _ => "check the address",
            };
            Error::system(format!("listen at {self}, where all ranks meet"), cause, remedy)
        })
    }

    /// The addresses behind a TCP meeting; `None` for one that never leaves this host.
    pub(super) fn addresses(&self) -> Option<io::Result<Vec<SocketAddr>>> {
        match self {
            Meeting::Tcp { host, port, .. } | Meeting::Inherited(Inherited { host, port, .. }) => {
                Some(addresses(host, *port))
            }
            Meeting::Local(_) => None,
        }
    }

    /// One try to reach rank 0. `attempt` alternates between the addresses at which it may be.
    pub(crate) fn connect(
        &self,
        attempt: usize,
        patience: Duration,
        tls: Option<&Tls>,
    ) -> io::Result<Stream> {
        match self {
            Meeting::Tcp { host, port, agent } => {
                let port = if *agent && attempt % 2 == 1 { port.wrapping_add(1) } else { *port };
                connect(host, port, patience, tls)
            }
            Meeting::Inherited(Inherited { host, port, .. }) => connect(host, *port, patience, tls),
            Meeting::Local(name) => {
                let stream = UnixStream::connect_addr(&abstract_address(name)?)?;
                same_user(&stream)?;
                Ok(Stream::Local(stream))
            }
        }
    }
}

fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no address for {host}")));
    }
    Ok(found)
}

fn bind(host: &str, port: u16) -> io::Result<TcpListener> {
    let addresses = addresses(host, port)?;
    if addresses.iter().any(|address| address.ip().is_unspecified()) {
        let what = format!("{host} names no interface at which other ranks could find this one");
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, what));
    }
    if host != "localhost"
        && host.parse::<IpAddr>().is_err()
        && addresses.iter().all(|a| a.ip().is_loopback())
    {
        tracing::warn!("{host} is a loopback address on its own host: ranks on other hosts cannot reach it");
    }
    TcpListener::bind(&*addresses)
}

fn connect(host: &str, port: u16, patience: Duration, tls: Option<&Tls>) -> io::Result<Stream> {
    let mut last = None;
    for address in addresses(host, port)? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                // Loopback quirk: a connect to a free ephemeral port may meet itself.
                last = Some(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(Stream::Tcp(Socket::called(stream, tls)?));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Takes over a socket that the launcher left open for this process. It can be taken once.
fn inherit(descriptor: RawFd, port: u16) -> io::Result<TcpListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if descriptor <= 2 {
        return Err(refused("HEXAGRAM_LISTEN_FD is not a descriptor above 2"));
    }
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(refused("HEXAGRAM_LISTEN_FD was used by an earlier world of this process"));
    }
    // SAFETY: not -1, and borrowed only for the checks below; a closed descriptor fails them with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if !sockopt::socket_acceptconn(borrowed)? {
        return Err(refused("HEXAGRAM_LISTEN_FD is not a listening socket"));
    }
    let address = rustix::net::getsockname(borrowed)?;
    if SocketAddr::try_from(address).map_or(true, |address| address.port() != port) {
        return Err(refused("HEXAGRAM_LISTEN_FD and HEXAGRAM_ADDR name different ports"));
    }
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: a listening socket at the address that the launcher announced, opened for this process, and taken by
    // nobody before.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())
}
