//! Connects processes of one host: each pair exchanges its segments over a unix socket, which the higher rank connects.
//! The socket stays open, for memory that is registered later.
//!
//! ```text
//! caller → callee   call of `data_listener`, whose first byte carries the caller's files
//! callee → caller   a byte that carries the callee's files, after the welcome
//! both              proof:16                the proof read from the other's segment, or zeros
//! both              share:u8 apart:u32      whether this pair shares memory; a rank with which it is not shared, or 2³² − 1
//! files = (segment eventfd)?            none from a rank that can have no shared memory
//! ```
//!
//! A received segment may not be mappable. So each side sends the proof that it reads in the segment of the other,
//! and then whether it received its own proof from this peer and from all. A pair shares memory if both sides confirm
//! it, and all ranks know whether all pairs do.

use super::collectives::ShmContext;
use super::endpoint::{ShmEndpoint, ShmParking};
use super::link::ShmLink;
use super::park::ParkMode;
use super::segment::descriptors::{FILES, ShmConnection, receive_whole, send};
use super::segment::region::Regions;
use super::segment::registration::RegistrationSockets;
use super::segment::{Proof, Segment};
use crate::backends::stream::endpoint::{EndpointIdentity, StreamEndpoint};
use crate::bootstrap::sockets::data_listener::DataListener;
use crate::bootstrap::sockets::dial::{Dial, DialRequest, STEP_TIMEOUT};
use crate::bootstrap::sockets::local;
use crate::bootstrap::{Accept, abstract_address, random, same_user};
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::system::limits;
use crate::transport::{
    Backend, Bell, Fabric, Membership, Prepared, ProbeResult, Sharing, Site, Traffic, Transport,
    TransportKind,
};
use crate::waiting::doorbell::Doorbell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;

/// Transport over shared memory.
pub(crate) struct ShmBackend;

impl Backend for ShmBackend {
    fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(ShmPrepared::open()?))
    }

    fn sharing(&self) -> Sharing {
        Sharing::Required
    }
}

/// Listener of a rank before its peers are known.
pub(crate) struct ShmPrepared {
    listener: UnixListener,
    name: String,
}

impl ShmPrepared {
    /// Listens at an abstract name that is unique on this host.
    pub(crate) fn open() -> Result<Self> {
        let open = || -> io::Result<Self> {
            let name = format!("hexagram-data-{:032x}", u128::from_le_bytes(random()?));
            let listener = UnixListener::bind_addr(&abstract_address(&name)?)?;
            listener.set_nonblocking(true)?;
            Ok(ShmPrepared { listener, name })
        };
        open().map_err(|cause| {
            Error::system("listen at an abstract unix socket", cause, "use the tcp transport")
        })
    }
}

impl Prepared for ShmPrepared {
    /// Returns the name at which peers call.
    fn announcement(&self) -> Vec<u8> {
        self.name.clone().into_bytes()
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        Ok(Arc::new(ShmFabric::new(*self, member)?))
    }
}

impl AsFd for ShmPrepared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Files that a rank passes to its peers: its segment, and the eventfd that wakes it.
struct SegmentFiles {
    segment: OwnedFd,
    waker: OwnedFd,
}

impl SegmentFiles {
    /// Takes the files of a message: all of them, or none.
    fn from(files: Vec<OwnedFd>) -> io::Result<Option<Self>> {
        match <[OwnedFd; FILES]>::try_from(files) {
            Ok([segment, waker]) => Ok(Some(SegmentFiles { segment, waker })),
            Err(files) if files.is_empty() => Ok(None),
            Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Accept for ShmPrepared {
    type Connection = ShmConnection;

    fn accept(&self) -> io::Result<ShmConnection> {
        let (stream, _) = self.listener.accept()?;
        same_user(&stream)?;
        stream.set_nonblocking(true)?;
        Ok(ShmConnection { stream, files: Vec::new() })
    }
}

/// Bytes of a proof.
const PROOF: usize = size_of::<Proof>();
/// Maps the segment of the rank at place `theirs` among `ranks`, for the rank at `place`.
fn map(files: SegmentFiles, ranks: usize, theirs: usize, place: usize) -> io::Result<Arc<Segment>> {
    let SegmentFiles { segment, waker } = files;
    #[cfg(test)]
    if super::tests::cannot_map(theirs) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let bytes = rustix::fs::fstat(&segment).map_or(0, |file| u64::try_from(file.st_size).unwrap_or(0));
    Segment::map(&segment, ranks, theirs, place, Arc::new(Doorbell::from(waker))).map_err(|cause| {
        match limits::more_addresses(bytes).filter(|_| cause.kind() == io::ErrorKind::OutOfMemory) {
            Some(remedy) => io::Error::new(io::ErrorKind::OutOfMemory, format!("{cause}; {remedy}")),
            None => cause,
        }
    })
}

/// Segments of the ranks of one host.
pub(crate) struct HostSegments {
    /// Segment of this rank, or the reason why it can have none.
    pub(crate) own: Result<Arc<Segment>>,
    /// Segments of the ranks that share memory with this one, itself among them, with these ranks, in order.
    shared: Vec<(usize, Arc<Segment>)>,
    /// Two of the ranks that share no memory, if any. All ranks know whether such a pair exists.
    pub(crate) missing: Option<(usize, usize)>,
    /// Ranks with which this rank shares no memory, and the reasons, if it has shared memory itself.
    pub(crate) apart: Vec<(usize, io::Error)>,
    /// Eventfd that wakes this rank while it waits for descriptors.
    pub(crate) waker: Arc<Doorbell>,
    streams: Vec<Option<UnixStream>>,
}

impl HostSegments {
    /// Returns the links of this rank, the owner of `own`, and their ranks: those that share memory with it, and
    /// itself, whose link carries no messages.
    pub(crate) fn links(
        &self,
        own: &Arc<Segment>,
        health: &Arc<Health>,
    ) -> impl Iterator<Item = (usize, ShmLink)> {
        self.shared.iter().map(move |(rank, theirs)| {
            (*rank, ShmLink::new(Arc::clone(own), Arc::clone(theirs), *rank, Arc::clone(health)))
        })
    }

    /// Returns the parking place of this rank, which owns `own`.
    pub(crate) fn parking(&self, own: &Arc<Segment>, mode: ParkMode) -> ShmParking {
        let others = self.shared.iter().filter(|(_, segment)| segment.place() != own.place());
        ShmParking::new(Arc::clone(own), others.map(|(_, segment)| Arc::clone(segment)).collect(), mode)
    }
}

/// Result of the exchange with one peer.
struct PeerExchange {
    peer: usize,
    stream: UnixStream,
    /// Segment of the peer, or the reason why there is none.
    theirs: io::Result<Arc<Segment>>,
}

/// Last message of one side.
struct SharingReport {
    /// True if it shares memory with this peer.
    with_you: bool,
    /// A rank with which it shares no memory.
    apart: Option<usize>,
}

impl SharingReport {
    const BYTES: usize = 1 + 4;

    /// Encodes the report.
    fn write(&self) -> [u8; Self::BYTES] {
        let mut bytes = [u8::from(self.with_you); Self::BYTES];
        bytes[1..].copy_from_slice(&self.apart.map_or(u32::MAX, |rank| rank as u32).to_le_bytes());
        bytes
    }

    /// Decodes the report of a peer in a world of `size` ranks.
    fn read(bytes: [u8; Self::BYTES], size: usize) -> Self {
        let [with_you, apart @ ..] = bytes;
        let apart = u32::from_le_bytes(apart);
        let apart = (apart != u32::MAX).then_some((apart as usize).min(size - 1));
        SharingReport { with_you: with_you == 1, apart }
    }
}

/// Opens channels over shared memory.
pub(crate) struct ShmFabric {
    member: Arc<Membership>,
    /// Names at which the ranks are called, by rank.
    names: Vec<String>,
    listener: DataListener<ShmConnection>,
}

impl ShmFabric {
    /// Starts accepting the connections of peers.
    pub(crate) fn new(prepared: ShmPrepared, member: Arc<Membership>) -> Result<Self> {
        let name =
            |rank| String::from_utf8(member.announcement(rank).to_vec()).map_err(|_| member.unreadable(rank));
        let names = (0..member.size()).map(name).collect::<Result<_>>()?;
        let listener = DataListener::open(prepared, &member.peers)?;
        Ok(ShmFabric { member, names, listener })
    }

    /// Builds the error of a failed exchange.
    fn failed(&self, peer: usize, cause: io::Error) -> Error {
        let doing = format!("exchange shared memory with {}", self.member.health.peers()[peer]);
        Error::system(doing, cause, "use the mixed or the tcp transport, or check that that process is alive")
    }

    /// Returns the peer's files, in exchange for this rank's, and the socket over which they came.
    fn exchange(
        &self,
        peer: usize,
        channel: u16,
        mine: &[BorrowedFd<'_>],
    ) -> Result<(Option<SegmentFiles>, UnixStream)> {
        let Membership { rank, peers, health, limit, .. } = &*self.member;
        let failed = |cause| self.failed(peer, cause);
        let call = DialRequest { channel, socket: 0, rank: peer.max(*rank) };
        if peer > *rank {
            let caller = self.listener.await_call(call, *limit, health)?;
            send(&caller.stream, &[0], mine).map_err(failed)?;
            return Ok((SegmentFiles::from(caller.files).map_err(failed)?, caller.stream));
        }
        let connect = || {
            let stream = local::connect(&self.names[peer], STEP_TIMEOUT)?;
            same_user(&stream)?;
            Ok(stream)
        };
        let opening = self.opening(peer, channel);
        let stream = opening.connect(&peers.key, call, connect, |stream, words| send(stream, words, mine))?;
        stream.set_nonblocking(true).map_err(failed)?;
        let (_, files) = opening.until(&stream, || receive_whole::<1>(&stream))?;
        Ok((SegmentFiles::from(files).map_err(failed)?, stream))
    }

    /// Creates a segment of this rank, and exchanges it with the other ranks among `ranks`.
    pub(crate) fn gather(&self, channel: u16, ranks: &[usize]) -> Result<HostSegments> {
        let waker = Arc::new(Doorbell::new()?);
        let place = ranks.iter().position(|peer| *peer == self.member.rank).unwrap_or_default();
        let created = Segment::create(ranks.len(), place, Arc::clone(&waker));
        let files: Vec<BorrowedFd<'_>> =
            created.iter().flat_map(|(_, file)| [file.as_fd(), waker.as_fd()]).collect();
        let mut pairs = Vec::new();
        for (theirs, peer) in ranks.iter().copied().enumerate().filter(|(theirs, _)| *theirs != place) {
            let (files, stream) = self.exchange(peer, channel, &files)?;
            let theirs = match files {
                Some(files) => map(files, ranks.len(), theirs, place),
                None => Err(io::Error::new(
                    io::ErrorKind::OutOfMemory,
                    "it has no shared memory: see its messages",
                )),
            };
            pairs.push(PeerExchange { peer, stream, theirs });
        }
        let own = created.map(|(own, _)| own);
        self.prove(channel, own.as_deref().ok(), &mut pairs)?;
        let missing = self.compare(channel, own.is_err(), &mut pairs)?;
        let mut shared: Vec<_> = own.iter().map(|own| (self.member.rank, Arc::clone(own))).collect();
        let mut streams = Vec::new();
        let mut apart = Vec::new();
        for PeerExchange { peer, stream, theirs } in pairs {
            streams.push(Some(stream));
            match theirs {
                Ok(theirs) => shared.push((peer, theirs)),
                Err(why) => apart.push((peer, why)),
            }
        }
        shared.sort_unstable_by_key(|(rank, _)| *rank);
        streams.insert(place, None);
        Ok(HostSegments { own, shared, missing, apart, waker, streams })
    }

    /// Sends every peer the proof in its segment, and drops those that do not return the one in `mine`.
    fn prove(&self, channel: u16, mine: Option<&Segment>, pairs: &mut [PeerExchange]) -> Result<()> {
        for PeerExchange { peer, stream, theirs } in &*pairs {
            let proof = theirs.as_ref().map_or(Proof::default(), |theirs| theirs.proof());
            send(stream, &proof, &[]).map_err(|cause| self.failed(*peer, cause))?;
        }
        for PeerExchange { peer, stream, theirs } in pairs {
            let (shown, _) = self.opening(*peer, channel).until(stream, || receive_whole::<PROOF>(stream))?;
            if theirs.is_ok() && mine.is_none_or(|mine| mine.proof() != shown) {
                *theirs = Err(io::Error::other("it has not mapped the memory of this rank"));
            }
        }
        Ok(())
    }

    /// Notifies every peer whether this rank shares memory with it and with all, and drops those that do not. Returns
    /// two ranks of this host that share no memory, if any; a rank without shared memory is returned twice.
    fn compare(
        &self,
        channel: u16,
        refused: bool,
        pairs: &mut [PeerExchange],
    ) -> Result<Option<(usize, usize)>> {
        let Membership { rank, .. } = *self.member;
        let missing = pairs.iter().find(|pair| pair.theirs.is_err()).map(|pair| pair.peer);
        let missing = if refused { Some(rank) } else { missing };
        for PeerExchange { peer, stream, theirs } in &*pairs {
            let share = SharingReport { with_you: theirs.is_ok(), apart: missing };
            send(stream, &share.write(), &[]).map_err(|cause| self.failed(*peer, cause))?;
        }
        let mut apart = missing.map(|other| (rank, other));
        for PeerExchange { peer, stream, theirs } in pairs {
            let said = self.opening(*peer, channel).until(stream, || receive_whole(stream))?.0;
            let share = SharingReport::read(said, self.member.size());
            apart = apart.or(share.apart.map(|other| (*peer, other)));
            if theirs.is_ok() && !share.with_you {
                *theirs = Err(io::Error::other("it could not map the memory of this rank"));
            }
        }
        Ok(apart)
    }

    /// Returns the limits of a wait for `peer`.
    fn opening(&self, peer: usize, channel: u16) -> Dial<'_> {
        Dial { peer, channel, limit: self.member.limit, health: &self.member.health }
    }

    /// Creates the endpoint among `ranks`, which all share memory. Fails if one does not.
    pub(crate) fn endpoint(
        &self,
        channel: u16,
        ranks: &[usize],
        gathered: HostSegments,
    ) -> Result<Rc<dyn Transport>> {
        let Membership { rank, health, traffic, .. } = &*self.member;
        let own = gathered.own.clone()?;
        if let Some((one, other)) = gathered.missing {
            let why = gathered.apart.first().map_or_else(String::new, |(_, why)| format!(": {why}"));
            let one = &health.peers()[one];
            let other = &health.peers()[other];
            let what = format!("{one} and {other} share no memory on channel {channel}{why}");
            return Err(Error::setup(
                what,
                "use the mixed or the tcp transport, or see the messages of these ranks",
            ));
        }
        let bell = Arc::clone(&own) as Arc<dyn Bell>;
        let identity = EndpointIdentity::new(&self.member, ranks, TransportKind::Shm, bell);
        // No pair of these ranks is missing. This rank's own segment stands for ranks that are not among them.
        let mut segments = vec![Arc::clone(&own); self.member.size()];
        for (rank, segment) in &gathered.shared {
            segments[*rank] = Arc::clone(segment);
        }
        let link = |(rank, theirs)| ShmLink::new(Arc::clone(&own), theirs, rank, Arc::clone(health));
        let links = segments.iter().cloned().enumerate().map(link).collect();
        let parking = gathered.parking(&own, ParkMode::Futex);
        let stream = StreamEndpoint::new(identity, links, parking);
        let sockets = RegistrationSockets { channel, streams: gathered.streams, health: Arc::clone(health) };
        let context = ShmContext {
            rank: *rank,
            segments,
            regions: Regions::new(),
            health: Arc::clone(health),
            traffic: traffic.tally(TransportKind::Shm),
            crowded: self.member.is_crowded(),
        };
        Ok(Rc::new(ShmEndpoint::new(stream, context, sockets)))
    }
}

impl Fabric for ShmFabric {
    fn open(&self, channel: u16, ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        self.endpoint(channel, ranks, self.gather(channel, ranks)?)
    }

    fn health(&self) -> &Arc<Health> {
        &self.member.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.member.traffic
    }

    fn probe_memory(&self, peer: usize) -> ProbeResult {
        let Membership { rank, peers, health, limit, .. } = &*self.member;
        let mut reached = false;
        let connect = || {
            let stream = local::connect(&self.names[peer], STEP_TIMEOUT)?;
            reached = true;
            same_user(&stream)?;
            Ok(stream)
        };
        let opening = Dial { peer, channel: 0, limit: *limit, health };
        match opening.probe(&peers.key, *rank, connect) {
            Ok(()) => ProbeResult::Shared,
            Err(error) if reached => ProbeResult::SameKernel(error.to_string()),
            Err(error) => ProbeResult::Unreachable(error.to_string()),
        }
    }
}
