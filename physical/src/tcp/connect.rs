//! Connects processes by TCP: the higher rank of each pair calls the lower.

use super::endpoint::TcpWire;
use super::link::TcpLink;
use crate::bootstrap::Accept;
use crate::bootstrap::data_listener::{Call, DataListener};
use crate::bootstrap::listeners::{BindError, Listeners};
use crate::bootstrap::membership::Membership;
use crate::bootstrap::opening::{Opening, STEP_TIMEOUT};
use crate::doorbell::Doorbell;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::socket::{Socket, Tls};
use crate::stream::endpoint::{Identity, StreamEndpoint};
use crate::transport::{Bell, Traffic, Transport, TransportKind};
use crate::world::Fabric;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

/// Most sockets between two ranks: more would only wait for each other.
pub(crate) const MAX_SOCKETS: usize = 16;

/// Where this rank accepts data connections, before it knows its peers.
pub(crate) struct TcpDoor {
    listeners: Listeners,
    tls: Option<Tls>,
}

impl TcpDoor {
    /// Listens on `interfaces`, at ports that the system chooses; callers have to speak `tls`, if it is given.
    pub(crate) fn open(interfaces: &[SocketAddr], tls: Option<Tls>) -> Result<Self> {
        let listeners = Listeners::bind(interfaces).map_err(|BindError { address, cause }| {
            let remedy = "name another interface of this host in HEXAGRAM_INTERFACE";
            Error::system(format!("listen on {} for data", address.ip()), cause, remedy)
        })?;
        Ok(TcpDoor { listeners, tls })
    }

    /// What peers need in order to call: one or several addresses, with spaces between them.
    pub(crate) fn address(&self) -> String {
        let all = self.listeners.addresses().unwrap_or_default();
        all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ")
    }
}

impl AsFd for TcpDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listeners.as_fd()
    }
}

impl Accept for TcpDoor {
    type Connection = Socket;

    fn accept(&self) -> io::Result<Socket> {
        Socket::accepted(self.listeners.accept()?, self.tls.as_ref())
    }
}

/// The same address as this host has to write it: a link-local one is of an interface, whose number differs from host to
/// host. It is taken for the one at which this rank listens itself, as `mine` says.
fn seen_from(mine: &str, address: SocketAddr) -> SocketAddr {
    let link_local = |address: SocketAddr| match address {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => Some(address),
        _ => None,
    };
    let mut own = mine.split(' ').filter_map(|address| address.parse().ok()).filter_map(link_local);
    match (link_local(address), own.next()) {
        (Some(mut address), Some(own)) => {
            address.set_scope_id(own.scope_id());
            address.into()
        }
        _ => address,
    }
}

pub(crate) struct TcpFabric {
    member: Arc<Membership>,
    listener: DataListener<Socket>,
    tls: Option<Tls>,
}

impl TcpFabric {
    pub(crate) fn new(door: TcpDoor, member: Arc<Membership>) -> Result<Self> {
        let tls = door.tls.clone();
        let listener = DataListener::open(door, &member.peers)?;
        Ok(TcpFabric { member, listener, tls })
    }

    /// Connects to the first of a peer's addresses that this host can reach.
    fn reach(&self, addresses: &str) -> io::Result<TcpStream> {
        let mut outcome = Err(io::ErrorKind::InvalidInput.into());
        for address in addresses.split(' ') {
            let address: SocketAddr =
                address.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            outcome = TcpStream::connect_timeout(&seen_from(&self.member.mine().tcp, address), STEP_TIMEOUT);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    fn call(&self, peer: usize, channel: u16, socket: u16) -> Result<Socket> {
        let Membership { rank, peers, health, limit, .. } = &*self.member;
        let connect = || -> io::Result<Socket> {
            let stream = self.reach(&peers.infos[peer].tcp)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STEP_TIMEOUT))?;
            stream.set_write_timeout(Some(STEP_TIMEOUT))?;
            Socket::called(stream, self.tls.as_ref())
        };
        let opening = Opening { peer, channel, limit: *limit, health };
        let call = Call { channel, socket, rank: *rank };
        opening.connect(&peers.key, call, connect, |stream, words| stream.write_all(words))
    }

    /// A link to `peer`: the higher rank of the two calls.
    fn connect(&self, peer: usize, channel: u16) -> Result<TcpLink> {
        let Membership { rank, health, limit, .. } = &*self.member;
        let mine = self.member.mine();
        let theirs = self.member.info(peer);
        let sockets = mine.sockets.min(theirs.sockets).clamp(1, MAX_SOCKETS) as u16;
        let near = self.member.hosts.share_kernel(*rank, peer);
        let stream = |socket| {
            if peer < *rank {
                return self.call(peer, channel, socket);
            }
            self.listener.await_call(Call { channel, socket, rank: peer }, *limit, health)
        };
        let streams: Result<Vec<Socket>> = (0..sockets).map(stream).collect();
        TcpLink::new(streams?, near)
            .map_err(|cause| Error::system("set up a socket", cause, "see whether that peer is still alive"))
    }

    /// This rank's end of its sockets to `peers`; `bell` ends its sleep.
    pub(crate) fn wire(
        &self,
        channel: u16,
        peers: impl Fn(usize) -> bool,
        bell: Arc<Doorbell>,
    ) -> Result<TcpWire> {
        let connect = |peer| {
            let wanted = peer != self.member.rank && peers(peer);
            wanted.then(|| self.connect(peer, channel)).transpose()
        };
        let links: Result<Vec<Option<TcpLink>>> = (0..self.member.size()).map(connect).collect();
        TcpWire::new(links?, bell)
    }
}

impl Fabric for TcpFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let bell = Arc::new(Doorbell::new()?);
        let wire = self.wire(channel, |_| true, Arc::clone(&bell))?;
        let identity = Identity::new(&self.member, TransportKind::Tcp, bell as Arc<dyn Bell>);
        Ok(Rc::new(StreamEndpoint::new(identity, wire)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.member.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.member.traffic
    }
}
