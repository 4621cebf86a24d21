//! Connects processes on any number of hosts, pair by pair.
//!
//! The ranks of one host exchange shared memory first, as in `shm`. A rank without shared memory sends none, and if
//! one side cannot map the segment of the other, both are notified: TCP then carries their messages. All remaining
//! pairs connect as in `tcp`.
//!
//! ```text
//! announcement = length:u32 shm:blob tcp:blob     those of the two transports; as in `bootstrap::handshake::message`
//! ```

use super::endpoint::{MixedEndpoint, MixedParking};
use super::link::MixedLink;
use crate::backends::shm::{HostSegments, ParkMode, ShmFabric, ShmLink, ShmPrepared};
use crate::backends::stream::endpoint::EndpointIdentity;
use crate::backends::tcp::{TcpBackend, TcpFabric, TcpParking, TcpPrepared};
use crate::bootstrap::handshake::message::{MessageReader, MessageWriter};
use crate::control::health::Health;
use crate::error::Result;
use crate::transport::{
    ANNOUNCEMENT_BYTES, Backend, Bell, Fabric, Membership, Prepared, ProbeResult, Sharing, Site, Traffic,
    Transport, TransportKind,
};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Transport that combines `shm` and `tcp`.
pub(crate) struct MixedBackend;

impl Backend for MixedBackend {
    fn prepare(&self, site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(MixedPrepared { shm: ShmPrepared::open()?, tcp: TcpPrepared::new(site)? }))
    }

    fn sharing(&self) -> Sharing {
        Sharing::WherePossible
    }

    fn loopback_only(&self, announcement: &[u8]) -> Option<String> {
        let [_, tcp] = parts(announcement).ok()?;
        TcpBackend.loopback_only(&tcp)
    }
}

/// Splits an announcement into that of shared memory and that of TCP.
fn parts(mut announcement: &[u8]) -> io::Result<[Arc<[u8]>; 2]> {
    let mut message = MessageReader::receive(&mut announcement)?;
    let shm = message.blob(ANNOUNCEMENT_BYTES)?.into();
    let tcp = message.blob(ANNOUNCEMENT_BYTES)?.into();
    Ok([shm, tcp])
}

/// Listeners for both kinds of peers.
struct MixedPrepared {
    shm: ShmPrepared,
    tcp: TcpPrepared,
}

impl Prepared for MixedPrepared {
    fn announcement(&self) -> Vec<u8> {
        MessageWriter::default().blob(&self.shm.announcement()).blob(&self.tcp.announcement()).whole()
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        let mut names = Vec::new();
        let mut addresses = Vec::new();
        for rank in 0..member.size() {
            let [shm, tcp] = parts(member.announcement(rank)).map_err(|_| member.unreadable(rank))?;
            names.push(shm);
            addresses.push(tcp);
        }
        let shm = ShmFabric::new(self.shm, member.announcing(names))?;
        let tcp = TcpFabric::new(self.tcp, member.announcing(addresses))?;
        Ok(Arc::new(MixedFabric { member, shm, tcp }))
    }
}

/// Opens channels over shared memory and TCP.
struct MixedFabric {
    member: Arc<Membership>,
    shm: ShmFabric,
    tcp: TcpFabric,
}

impl MixedFabric {
    /// Warns if memory is not shared that should be.
    fn warn(&self, gathered: &HostSegments) {
        if let Err(refusal) = &gathered.own {
            tracing::warn!("tcp instead of shared memory to all ranks of this host: {refusal}");
            return;
        }
        let Some((first, why)) = gathered.apart.first() else { return };
        let others = match gathered.apart.len() - 1 {
            0 => String::new(),
            1 => " and 1 more rank".to_owned(),
            more => format!(" and {more} more ranks"),
        };
        let peer = &self.member.health.peers()[*first];
        tracing::warn!("tcp instead of shared memory to {peer}{others}: {why}");
    }

    /// Creates an endpoint without any shared memory.
    fn remote(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        Ok(Rc::new(self.tcp.endpoint(channel, ranks, TransportKind::Mixed)?))
    }
}

impl Fabric for MixedFabric {
    fn open(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        // The ranks of this host, this one among them.
        let mut locals = self.member.hosts.sharing_with(self.member.rank);
        locals.retain(|local| ranks.contains(local));
        if locals.len() == 1 && ranks.len() > 1 {
            return self.remote(channel, ranks);
        }
        let gathered = self.shm.gather(channel, &locals)?;
        self.warn(&gathered);
        if gathered.missing.is_none() && locals.len() == ranks.len() {
            return self.shm.endpoint(channel, ranks, gathered);
        }
        let Ok(own) = &gathered.own else { return self.remote(channel, ranks) };
        let mut memory: Vec<Option<ShmLink>> = (0..self.member.size()).map(|_| None).collect();
        for (rank, link) in gathered.links(own, &self.member.health) {
            memory[rank] = Some(link);
        }
        let sockets = self.tcp.links(channel, |peer| ranks.contains(&peer) && memory[peer].is_none())?;
        let watched = TcpParking::new(&sockets, Arc::clone(&gathered.waker))?;
        let parking = MixedParking::new(gathered.parking(own, ParkMode::Descriptor), watched);
        let links = memory.into_iter().zip(sockets);
        let links =
            links.map(|(memory, sockets)| memory.map_or(MixedLink::Sockets(sockets), MixedLink::Memory));
        let identity =
            EndpointIdentity::new(&self.member, ranks, TransportKind::Mixed, gathered.waker as Arc<dyn Bell>);
        Ok(Rc::new(MixedEndpoint::new(identity, links.collect(), parking)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.member.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.member.traffic
    }

    fn probe_memory(&self, peer: usize) -> ProbeResult {
        self.shm.probe_memory(peer)
    }
}
