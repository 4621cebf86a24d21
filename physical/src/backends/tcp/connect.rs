//! Connects processes by TCP: the higher rank of each pair calls the lower.
//!
//! ```text
//! announcement = length:u32 sockets:u32 addresses:text     with spaces between them; as in `bootstrap::handshake::message`
//! ```

use super::endpoint::{TcpEndpoint, TcpParking};
use super::link::TcpLink;
use crate::backends::socket;
use crate::backends::socket::{Socket, Tls};
use crate::backends::stream::endpoint::EndpointIdentity;
use crate::bootstrap::Accept;
use crate::bootstrap::handshake::message::{MessageReader, MessageWriter};
use crate::bootstrap::sockets::data_listener::DataListener;
use crate::bootstrap::sockets::dial::{Dial, DialRequest, STEP_TIMEOUT};
use crate::bootstrap::sockets::listeners::{BindError, Listeners};
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::transport::{
    Backend, Bell, Fabric, Membership, Prepared, Site, Traffic, Transport, TransportKind,
};
use crate::waiting::doorbell::Doorbell;
use crate::world::MAX_SOCKETS;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

/// Transport over TCP.
pub(crate) struct TcpBackend;

impl Backend for TcpBackend {
    fn prepare(&self, site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(TcpPrepared::new(site)?))
    }

    fn loopback_only(&self, announcement: &[u8]) -> Option<String> {
        Announced::read(announcement).ok()?.loopback_only()
    }
}

/// Announcement of a rank to its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Announced {
    /// Number of TCP connections with each peer and channel.
    sockets: usize,
    /// Addresses at which it accepts them, one or several, with spaces between them.
    addresses: String,
}

impl Announced {
    /// Encodes the announcement.
    fn write(&self) -> Vec<u8> {
        MessageWriter::default().number(self.sockets).text(&self.addresses).whole()
    }

    /// Decodes an announcement.
    fn read(mut bytes: &[u8]) -> io::Result<Self> {
        let mut message = MessageReader::receive(&mut bytes)?;
        Ok(Announced { sockets: message.number()?, addresses: message.text()? })
    }

    /// Returns the addresses if all of them are loopback ones.
    fn loopback_only(self) -> Option<String> {
        let is_near =
            |address: &str| address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback());
        let loopback_only = !self.addresses.is_empty() && self.addresses.split(' ').all(is_near);
        loopback_only.then_some(self.addresses)
    }
}

/// Listeners of a rank before its peers are known.
pub(crate) struct TcpPrepared {
    listeners: Listeners,
    tls: Option<Tls>,
    sockets: usize,
}

impl TcpPrepared {
    /// Listens on the interfaces of the site, at ports that the kernel chooses. Callers must use TLS if this rank
    /// does.
    pub(crate) fn new(site: &Site<'_>) -> Result<Self> {
        let sockets = site.options.sockets()?;
        let listeners = Listeners::bind(site.interfaces).map_err(|BindError { address, cause }| {
            let remedy = "set HEXAGRAM_INTERFACE to a different interface of this host";
            Error::system(format!("listen on {} for data", address.ip()), cause, remedy)
        })?;
        Ok(TcpPrepared { listeners, tls: site.tls.cloned(), sockets })
    }
}

impl Prepared for TcpPrepared {
    fn announcement(&self) -> Vec<u8> {
        let all = self.listeners.addresses().unwrap_or_default();
        let addresses = all.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ");
        Announced { sockets: self.sockets, addresses }.write()
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        Ok(Arc::new(TcpFabric::new(*self, member)?))
    }
}

impl AsFd for TcpPrepared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listeners.as_fd()
    }
}

impl Accept for TcpPrepared {
    type Connection = Box<dyn Socket>;

    fn accept(&self) -> io::Result<Box<dyn Socket>> {
        socket::accepted(self.listeners.accept()?, self.tls.as_ref())
    }
}

/// Converts an address to the form for this host: a link-local one belongs to an interface, whose number differs from
/// host to host. The interface is that of the link-local address of this rank in `mine`.
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

/// Opens channels over TCP.
pub(crate) struct TcpFabric {
    member: Arc<Membership>,
    /// Announcements by rank.
    announced: Vec<Announced>,
    listener: DataListener<Box<dyn Socket>>,
    tls: Option<Tls>,
}

impl TcpFabric {
    /// Starts accepting the connections of peers.
    pub(crate) fn new(prepared: TcpPrepared, member: Arc<Membership>) -> Result<Self> {
        let tls = prepared.tls.clone();
        let read = |rank| Announced::read(member.announcement(rank)).map_err(|_| member.unreadable(rank));
        let announced = (0..member.size()).map(read).collect::<Result<_>>()?;
        let listener = DataListener::open(prepared, &member.peers)?;
        Ok(TcpFabric { member, announced, listener, tls })
    }

    /// Connects to the first of a peer's addresses that this host can reach.
    fn reach(&self, addresses: &str) -> io::Result<TcpStream> {
        let mut outcome = Err(io::ErrorKind::InvalidInput.into());
        for address in addresses.split(' ') {
            let address: SocketAddr =
                address.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            outcome = TcpStream::connect_timeout(
                &seen_from(&self.announced[self.member.rank].addresses, address),
                STEP_TIMEOUT,
            );
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Connects to the data listener of `peer`.
    fn call(&self, peer: usize, channel: u16, socket: u16) -> Result<Box<dyn Socket>> {
        let Membership { rank, peers, health, limit, .. } = &*self.member;
        let connect = || -> io::Result<Box<dyn Socket>> {
            let stream = self.reach(&self.announced[peer].addresses)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STEP_TIMEOUT))?;
            stream.set_write_timeout(Some(STEP_TIMEOUT))?;
            socket::called(stream, self.tls.as_ref())
        };
        let opening = Dial { peer, channel, limit: *limit, health };
        let call = DialRequest { channel, socket, rank: *rank };
        opening.connect(&peers.key, call, connect, |stream, words| stream.write_all(words))
    }

    /// Creates the link to `peer`: the higher rank of the two connects.
    fn connect(&self, peer: usize, channel: u16) -> Result<TcpLink> {
        let Membership { rank, health, limit, .. } = &*self.member;
        let wanted = [*rank, peer].map(|rank| self.announced[rank].sockets);
        let sockets = wanted[0].min(wanted[1]).clamp(1, MAX_SOCKETS) as u16;
        let near = self.member.hosts.share_kernel(*rank, peer);
        let stream = |socket| {
            if peer < *rank {
                return self.call(peer, channel, socket);
            }
            self.listener.await_call(DialRequest { channel, socket, rank: peer }, *limit, health)
        };
        let streams: Result<Vec<Box<dyn Socket>>> = (0..sockets).map(stream).collect();
        TcpLink::new(streams?, near)
            .map_err(|cause| Error::system("set up a socket", cause, "check that that peer is still alive"))
    }

    /// Creates the links of this rank by rank, with sockets to the ranks for which `wanted` is true.
    pub(crate) fn links(&self, channel: u16, wanted: impl Fn(usize) -> bool) -> Result<Vec<TcpLink>> {
        let link = |peer| {
            let connected = peer != self.member.rank && wanted(peer);
            if connected { self.connect(peer, channel) } else { Ok(TcpLink::unconnected()) }
        };
        (0..self.member.size()).map(link).collect()
    }

    /// Creates an endpoint among `ranks` that presents itself as of `kind`.
    pub(crate) fn endpoint(&self, channel: u16, ranks: &[usize], kind: TransportKind) -> Result<TcpEndpoint> {
        let bell = Arc::new(Doorbell::new()?);
        let links = self.links(channel, |peer| ranks.contains(&peer))?;
        let parking = TcpParking::new(&links, Arc::clone(&bell))?;
        let identity = EndpointIdentity::new(&self.member, ranks, kind, bell as Arc<dyn Bell>);
        Ok(TcpEndpoint::new(identity, links, parking))
    }
}

impl Fabric for TcpFabric {
    fn open(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        Ok(Rc::new(self.endpoint(channel, ranks, TransportKind::Tcp)?))
    }

    fn health(&self) -> &Arc<Health> {
        &self.member.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.member.traffic
    }
}
