//! The meeting place of all ranks of a job at start-up: a TCP address, or a unix socket if they share a host.

use crate::backends::socket;
use crate::backends::socket::Tls;
use crate::bootstrap::QUEUE;
use crate::bootstrap::sockets::listeners::{BindError, Listeners};
use crate::bootstrap::sockets::local::same_user;
use crate::bootstrap::sockets::socket_owner::SocketOwner;
use crate::bootstrap::sockets::stream::{Listener, RankStream, at_any_port};
use crate::error::{Error, Result};
use crate::runtime;
use crate::waiting::stopwatch::Stopwatch;
use rustix::net::sockopt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io};

/// Longest time to resolve a name again, for the remedy of an error.
const ADVICE_PATIENCE: Duration = Duration::from_secs(2);

/// Address at which rank 0 waits for the other ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rendezvous {
    /// TCP address.
    Tcp {
        /// Name or address of the host of rank 0.
        host: String,
        /// Port. If `agent` is set, the next port is tried as well.
        port: u16,
        /// True if an agent of the launcher may occupy the port, so that rank 0 listens at the next one.
        agent: bool,
    },
    /// Abstract unix socket with this name. It has no file, ends with its process, and is reachable on this host only.
    Local(String),
    /// Listening socket that the launcher has bound and passed to rank 0.
    Inherited(Inherited),
}

/// Listening sockets that a launcher left open for this process, and their address. Only
/// [`Placement::from_env`](crate::bootstrap::Placement::from_env) creates one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// Descriptors of the sockets.
    descriptors: Vec<RawFd>,
    /// Name or address of rank 0's host.
    pub(crate) host: String,
    /// Port of the sockets.
    pub(crate) port: u16,
}

impl Inherited {
    /// Creates the value from the launcher's variables.
    pub(crate) fn new(descriptors: Vec<RawFd>, host: String, port: u16) -> Self {
        Inherited { descriptors, host, port }
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rendezvous::Tcp { host, port, .. } | Rendezvous::Inherited(Inherited { host, port, .. }) => {
                let bare = host.contains(':') && !host.starts_with('[');
                if bare { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
            }
            Rendezvous::Local(name) => write!(f, "unix socket @{name}"),
        }
    }
}

/// Facts about the job for [`Rendezvous::listen`] and its errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenContext {
    /// Number of ranks on other hosts.
    pub(crate) remote_ranks: usize,
    /// Remedy by which the user chooses a different rendezvous.
    pub(crate) alternative: &'static str,
    /// Longest time to resolve a name.
    pub(crate) patience: Duration,
}

impl Rendezvous {
    /// Opens the listener of rank 0. Ranks that connect by TCP must use `tls`, if it is given.
    ///
    /// # Errors
    /// [`Error::System`] if the address is taken or belongs to a different host, [`Error::Setup`] if ranks on other
    /// hosts could never reach it.
    pub(crate) fn listen(&self, tls: Option<Tls>, context: ListenContext) -> Result<Listener> {
        match self {
            Rendezvous::Tcp { host, port, agent } => {
                let listeners = self.bind(host, *port, *agent, context)?;
                self.refuse_loopback(host, &listeners, context)?;
                Ok(Listener::Tcp(listeners, tls))
            }
            Rendezvous::Local(name) => self.bind_name(name, context).map(Listener::Local),
            Rendezvous::Inherited(Inherited { descriptors, port, .. }) => {
                let sockets = inherit(descriptors, *port).and_then(Listeners::new);
                let listeners =
                    sockets.map_err(|cause| self.cannot_listen(cause, "check the launcher's variables"))?;
                Ok(Listener::Tcp(listeners, tls))
            }
        }
    }

    /// Creates the error of a listener that could not be opened.
    fn cannot_listen(&self, cause: io::Error, remedy: impl Into<String>) -> Error {
        Error::system(format!("listen at {self}, the rendezvous of all ranks"), cause, remedy)
    }

    /// Listens at all addresses of `host` that belong to this host. If an `agent` occupies the port, listens at the
    /// next one.
    fn bind(&self, host: &str, port: u16, agent: bool, context: ListenContext) -> Result<Listeners> {
        let try_at = |port| -> Result<Result<Listeners, BindError>> {
            let found = addresses(host, port, context.patience).map_err(|cause| {
                self.cannot_listen(cause, format!("correct the name, or {}", context.alternative))
            })?;
            if found.iter().any(|address| address.ip().is_unspecified()) {
                let what = format!("{host} is not an address that other ranks can reach");
                let cause = io::Error::new(io::ErrorKind::AddrNotAvailable, what);
                return Err(self
                    .cannot_listen(cause, "use an address of the host of rank 0 that the others can reach"));
            }
            Ok(Listeners::bind(&found))
        };
        let taken = |refused: &BindError| refused.cause.kind() == io::ErrorKind::AddrInUse;
        let outcome = match (try_at(port)?, port.checked_add(1).filter(|_| agent)) {
            (Err(refused), Some(next)) if taken(&refused) => try_at(next)?,
            (outcome, _) => outcome,
        };
        outcome.map_err(|BindError { address, cause }| match cause.kind() {
            io::ErrorKind::AddrInUse => {
                let owner = SocketOwner::of_address(address)
                    .map_or_else(|| "another program".to_owned(), |h| h.to_string());
                self.cannot_listen(
                    cause,
                    format!("{owner} has {address}; end it, or {}", context.alternative),
                )
            }
            io::ErrorKind::AddrNotAvailable => {
                self.cannot_listen(cause, "rank 0 must run on the host that this address names")
            }
            _ => self.cannot_listen(cause, "check the address"),
        })
    }

    /// Refuses a name that resolves to loopback on its own host, such as the 127.0.1.1 of Debian, if ranks of other
    /// hosts must connect to it.
    fn refuse_loopback(&self, host: &str, listeners: &Listeners, context: ListenContext) -> Result<()> {
        let bound = listeners.addresses().unwrap_or_default();
        let is_given = host == "localhost" || host.parse::<IpAddr>().is_ok();
        if context.remote_ranks == 0 || is_given || !bound.iter().all(|address| address.ip().is_loopback()) {
            return Ok(());
        }
        let bound: Vec<String> = bound.iter().map(|address| address.ip().to_string()).collect();
        let what = format!(
            "the name {host}, the rendezvous of all ranks, resolves to {} on its own host, which none of the {} ranks on other hosts \
             can reach",
            bound.join(" and "),
            context.remote_ranks
        );
        Err(Error::setup(
            what,
            "use the network address of that host instead of its name, or correct /etc/hosts there",
        ))
    }

    /// Listens at the abstract unix socket `name`.
    fn bind_name(&self, name: &str, context: ListenContext) -> Result<UnixListener> {
        let bound = runtime::listen_local(name).and_then(|listener| {
            listener.set_nonblocking(true)?;
            rustix::net::listen(&listener, QUEUE)?;
            Ok(listener)
        });
        bound.map_err(|cause| {
            let remedy = match SocketOwner::of_name(name).filter(|_| cause.kind() == io::ErrorKind::AddrInUse)
            {
                Some(owner) => format!("{owner} has this name; end it, or {}", context.alternative),
                None => context.alternative.to_owned(),
            };
            self.cannot_listen(cause, remedy)
        })
    }

    /// Returns the addresses of a TCP rendezvous, `None` for one on a single host.
    pub(crate) fn addresses(&self, patience: Duration) -> Option<io::Result<Vec<SocketAddr>>> {
        match self {
            Rendezvous::Tcp { host, port, .. } | Rendezvous::Inherited(Inherited { host, port, .. }) => {
                Some(addresses(host, *port, patience))
            }
            Rendezvous::Local(_) => None,
        }
    }

    /// Returns the addresses of `listener`, with port 0, for the data listeners of rank 0. A listener at all
    /// addresses counts as one at the addresses of this rendezvous, which are resolved within `patience`.
    pub(crate) fn interfaces(&self, listener: &Listener, patience: Duration) -> io::Result<Vec<SocketAddr>> {
        let Listener::Tcp(listeners, _) = listener else { return Ok(vec![(Ipv4Addr::LOCALHOST, 0).into()]) };
        let bound = listeners.addresses()?;
        let named = match self {
            Rendezvous::Inherited(Inherited { host, port, .. })
                if bound.iter().any(|address| address.ip().is_unspecified()) =>
            {
                addresses(host, *port, patience)?
            }
            _ => bound,
        };
        Ok(named.into_iter().map(at_any_port).collect())
    }

    /// Returns true if an agent of the launcher may answer as well as rank 0.
    pub(crate) fn has_agent(&self) -> bool {
        matches!(self, Rendezvous::Tcp { agent: true, .. })
    }

    /// Returns the process of this host that listens at the address, if the system reveals it.
    pub(crate) fn owner(&self) -> Option<SocketOwner> {
        let addresses = self.addresses(ADVICE_PATIENCE)?.ok()?;
        addresses.into_iter().filter(|at| runtime::is_of_this_host(*at)).find_map(SocketOwner::of_address)
    }

    /// Returns the remedy for a rank that could not reach rank 0, with this `cause`.
    pub(crate) fn advice(&self, cause: &io::Error) -> String {
        let addresses = match self.addresses(ADVICE_PATIENCE) {
            Some(Ok(addresses)) => addresses,
            Some(Err(_)) => return "correct the name of the host of rank 0".to_owned(),
            None => Vec::new(),
        };
        let is_loopback = !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback());
        let mut own = addresses.into_iter().filter(|address| runtime::is_of_this_host(*address));
        match (cause.kind(), own.find_map(SocketOwner::of_address)) {
            (io::ErrorKind::ConnectionRefused, _) if is_loopback => format!(
                "no program listens there; {self} is this host itself: if rank 0 is on a different host, use an address of that \
                 host, else check that rank 0 has started"
            ),
            (io::ErrorKind::ConnectionRefused, _) => {
                "no program listens there: check that rank 0 has started, on that host".to_owned()
            }
            (_, Some(owner)) => {
                format!("{owner} listens there: if that is not rank 0, choose a different port for all ranks")
            }
            _ => "check that rank 0 has started, on that host".to_owned(),
        }
    }

    /// Tries once to connect to rank 0. `attempt` alternates between the ports at which it may listen. Checks `watch`
    /// after each step.
    pub(crate) fn connect(
        &self,
        attempt: usize,
        timeout: Duration,
        tls: Option<&Tls>,
        watch: &mut Stopwatch,
    ) -> io::Result<RankStream> {
        match self {
            Rendezvous::Tcp { host, port, agent } => {
                let next = port.checked_add(1).filter(|_| *agent && attempt % 2 == 1);
                connect(host, next.unwrap_or(*port), timeout, tls, watch)
            }
            Rendezvous::Inherited(Inherited { host, port, .. }) => connect(host, *port, timeout, tls, watch),
            Rendezvous::Local(name) => {
                let stream = runtime::connect_local(name, timeout)?;
                same_user(&stream)?;
                Ok(RankStream::Local(stream))
            }
        }
    }
}

/// Resolves a host, within `patience`.
///
/// # Errors
/// The system errors; `NotFound` without an address, `TimedOut` if the resolver does not answer in time.
pub(crate) fn addresses(host: &str, port: u16, patience: Duration) -> io::Result<Vec<SocketAddr>> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = runtime::resolve(host, port, patience)?;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no address for {host}")));
    }
    Ok(found)
}

/// Connects to the first address of `host` that accepts. Each address, and the resolution of the name, may take
/// `timeout`.
fn connect(
    host: &str,
    port: u16,
    timeout: Duration,
    tls: Option<&Tls>,
    watch: &mut Stopwatch,
) -> io::Result<RankStream> {
    let mut last = None;
    let addresses = addresses(host, port, timeout);
    watch.lap();
    for address in addresses? {
        let outcome = runtime::connect(&address, timeout);
        watch.lap();
        match outcome {
            Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {
                // Loopback quirk: a connect to a free ephemeral port may reach itself.
                last = Some(io::ErrorKind::ConnectionRefused.into());
            }
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(RankStream::Tcp(socket::called(stream, tls)?));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Takes over the sockets that the launcher left open for this process, once.
fn inherit(descriptors: &[RawFd], port: u16) -> io::Result<Vec<TcpListener>> {
    /// Set once the sockets have been taken.
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(refused("HEXAGRAM_LISTEN_FD was used by an earlier world of this process"));
    }
    descriptors.iter().map(|descriptor| inherit_one(*descriptor, port)).collect()
}

/// Creates the error for sockets that cannot be taken over.
fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.to_owned())
}

/// Takes over one socket, after a check that it listens at `port`.
fn inherit_one(descriptor: RawFd, port: u16) -> io::Result<TcpListener> {
    if descriptor <= 2 {
        return Err(refused("HEXAGRAM_LISTEN_FD is not a descriptor above 2"));
    }
    // SAFETY: not -1, and borrowed only for the checks below; a closed descriptor fails them with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if !sockopt::socket_acceptconn(borrowed)? {
        return Err(refused("HEXAGRAM_LISTEN_FD is not a listening socket"));
    }
    let address = rustix::net::getsockname(borrowed)?;
    if SocketAddr::try_from(address).map_or(true, |address| address.port() != port) {
        return Err(refused("HEXAGRAM_LISTEN_FD and HEXAGRAM_ADDR have different ports"));
    }
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: a listening socket at the address that the launcher announced, opened for this process. No other code
    // has taken it, since the list of descriptors is taken once and contains each once.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())
}
