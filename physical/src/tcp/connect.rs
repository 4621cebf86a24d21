//! Connects processes by TCP: the higher rank of each pair calls the lower.

use super::endpoint::TcpWire;
use super::link::Link;
use crate::bootstrap::doorway::{Accept, Call, Doorway};
use crate::bootstrap::join::Roster;
use crate::doorbell::Doorbell;
use crate::drive::crowded;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::stream::endpoint::{Identity, StreamEndpoint};
use crate::transport::{Bell, Traffic, Transport, TransportKind};
use crate::world::Fabric;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Most sockets between two ranks: more would only wait for each other.
pub(crate) const MAX_SOCKETS: usize = 16;

/// Where this rank accepts data connections, before it knows its peers.
pub(crate) struct TcpDoor(TcpListener);

impl TcpDoor {
    /// Listens on `interface`, at a port that the system chooses.
    pub(crate) fn open(interface: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((interface, 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map(TcpDoor).map_err(|cause| {
            Error::system(format!("listen on {interface}"), cause, "check the meeting address's interface")
        })
    }

    /// What peers need in order to call.
    pub(crate) fn address(&self) -> String {
        self.0.local_addr().map_or_else(|_| String::new(), |address| address.to_string())
    }
}

impl AsFd for TcpDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Accept for TcpDoor {
    type Connection = TcpStream;

    fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.0.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn hear(&self, connection: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        connection.read(into)
    }
}

pub(crate) struct TcpFabric {
    rank: usize,
    roster: Roster,
    doorway: Doorway<TcpDoor>,
    health: Arc<Health>,
    traffic: Arc<Traffic>,
    limit: Duration,
}

impl TcpFabric {
    pub(crate) fn new(
        rank: usize,
        door: TcpDoor,
        roster: Roster,
        health: Arc<Health>,
        limit: Duration,
    ) -> Self {
        let doorway = Doorway::new(door, roster.job);
        TcpFabric { rank, roster, doorway, health, traffic: Arc::default(), limit }
    }

    fn call(&self, peer: usize, channel: u16, socket: u16) -> Result<TcpStream> {
        let data = &self.roster.cards[peer].tcp;
        let call = || -> io::Result<TcpStream> {
            let address: SocketAddr =
                data.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            let mut stream = TcpStream::connect_timeout(&address, self.limit)?;
            Call { channel, socket, rank: self.rank }.say(&self.roster.job, &mut stream)?;
            Ok(stream)
        };
        call().map_err(|cause| {
            let doing = format!("connect to {} at {data}", self.health.peers()[peer]);
            Error::system(doing, cause, "see whether that process is alive and its host reachable")
        })
    }
}

impl TcpFabric {
    /// A link to `peer`: the higher rank of the two calls.
    fn connect(&self, peer: usize, channel: u16) -> Result<Link> {
        let (mine, theirs) = (&self.roster.cards[self.rank], &self.roster.cards[peer]);
        let sockets = mine.sockets.min(theirs.sockets).clamp(1, MAX_SOCKETS) as u16;
        let near = mine.kernel == theirs.kernel;
        let stream = |socket| {
            if peer < self.rank {
                return self.call(peer, channel, socket);
            }
            self.doorway.await_call(Call { channel, socket, rank: peer }, self.limit, &self.health)
        };
        let streams: Result<Vec<TcpStream>> = (0..sockets).map(stream).collect();
        Link::new(streams?, near)
            .map_err(|cause| Error::system("set up a socket", cause, "see whether that peer is still alive"))
    }
}

impl Fabric for TcpFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let size = self.roster.cards.len();
        let mut links = Vec::with_capacity(size);
        for peer in 0..size {
            let link = if peer == self.rank { None } else { Some(self.connect(peer, channel)?) };
            links.push(link);
        }
        let bell = Arc::new(Doorbell::new()?);
        let identity = Identity {
            kind: TransportKind::Tcp,
            rank: self.rank,
            size,
            health: Arc::clone(&self.health),
            traffic: Arc::clone(&self.traffic),
            bell: Arc::clone(&bell) as Arc<dyn Bell>,
            crowded: crowded(self.roster.local(self.rank)),
        };
        Ok(Rc::new(StreamEndpoint::new(identity, TcpWire::new(links, bell)?)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }
}
