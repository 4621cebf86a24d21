//! Connects processes of one host: each pair exchanges its segments over a unix socket, the higher rank calling. The
//! socket stays, for memory that is registered later.
//!
//! ```text
//! caller → callee   the call of `listener`, whose first byte carries the caller's files
//! callee → caller   a byte that carries the callee's files, after the welcome
//! both              proof:16                what the segment of the other says, or zeros
//! both              share:u8 apart:u32      whether with you; a rank with which it shares none, or 2³² − 1
//! files = (segment eventfd)?            none from a rank that can have no shared memory
//! ```
//!
//! A segment that came may be one that cannot be mapped. So each side says what it reads in the other's segment, and
//! then whether it got its own proof back from this one and from all: a pair shares memory if both sides say so, and all
//! ranks know whether all pairs do.

use super::collectives::ShmContext;
use super::endpoint::{ShmEndpoint, ShmWire};
use super::link::{Proof, Segment};
use super::park::ParkMode;
use super::region::{REGION_HEADER, Region, Regions, check_header, region_header};
use crate::bootstrap::Accept;
use crate::bootstrap::data_listener::{Call, DataListener};
use crate::bootstrap::opening::{Opening, STEP_TIMEOUT};
use crate::bootstrap::{abstract_address, local, random, same_user};
use crate::doorbell::Doorbell;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::limits;
use crate::stream::endpoint::{Identity, StreamEndpoint};
use crate::transport::{
    Backend, Bell, Fabric, Membership, Prepared, ProbeResult, Sharing, Site, Traffic, Transport,
    TransportKind,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The transport over shared memory.
pub(crate) struct ShmBackend;

impl Backend for ShmBackend {
    fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(ShmPrepared::open()?))
    }

    fn sharing(&self) -> Sharing {
        Sharing::Required
    }
}

/// A rank that hands out its segments, before it knows its peers.
pub(crate) struct ShmPrepared {
    listener: UnixListener,
    name: String,
}

impl ShmPrepared {
    /// Listens at an abstract name that nobody else has.
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

/// What a rank gives its peers: its segment, and the eventfd that wakes it.
struct SegmentFiles {
    segment: OwnedFd,
    waker: OwnedFd,
}

impl SegmentFiles {
    /// What came with a message: all files, or none.
    fn from(files: Vec<OwnedFd>) -> io::Result<Option<Self>> {
        match <[OwnedFd; FILES]>::try_from(files) {
            Ok([segment, waker]) => Ok(Some(SegmentFiles { segment, waker })),
            Err(files) if files.is_empty() => Ok(None),
            Err(_) => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A caller, and its files once they have arrived.
pub(crate) struct Caller {
    stream: UnixStream,
    files: Vec<OwnedFd>,
}

impl Accept for ShmPrepared {
    type Connection = Caller;

    fn accept(&self) -> io::Result<Caller> {
        let (stream, _) = self.listener.accept()?;
        same_user(&stream)?;
        stream.set_nonblocking(true)?;
        Ok(Caller { stream, files: Vec::new() })
    }
}

impl Read for Caller {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (bytes, files) = receive(&self.stream, into)?;
        self.files.extend(files);
        // Whoever sends more is no rank, and must not use our descriptors up.
        if self.files.len() > FILES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(bytes)
    }
}

impl Write for Caller {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Bytes of a proof.
const PROOF: usize = size_of::<Proof>();
/// SegmentFiles of one message, at most.
const FILES: usize = 2;

/// Sends bytes, the first of which carries files.
fn send(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
}

/// Receives what there is, and the files that came with it.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(into)];
    let received = retry_on_intr(|| recvmsg(stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    // SegmentFiles for which this process has no descriptors left are dropped by the kernel without an error.
    if is_cut && files.len() < FILES {
        return Err(Errno::MFILE.into());
    }
    Ok((received.bytes, files))
}

/// A message of exactly `N` bytes and the files that came with it; `None` while nothing has come. Senders write such a
/// message at once, and it is smaller than any socket's buffer, so that it comes whole.
fn receive_whole<const N: usize>(stream: &UnixStream) -> io::Result<Option<([u8; N], Vec<OwnedFd>)>> {
    let mut bytes = [0; N];
    match receive(stream, &mut bytes) {
        Ok((got, files)) if got == N => Ok(Some((bytes, files))),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// The sockets of one endpoint to its peers, over which registered memory is handed round.
pub(super) struct RegistrationSockets {
    channel: u16,
    /// By rank; none to itself.
    streams: Vec<Option<UnixStream>>,
    health: Arc<Health>,
}

impl RegistrationSockets {
    /// Gives every peer this rank's region of a registration, and maps theirs.
    pub(super) fn exchange_regions(
        &self,
        index: u32,
        bytes: usize,
        file: &OwnedFd,
        limit: Duration,
    ) -> Result<Vec<Option<Arc<Region>>>> {
        let failed = |peer: usize, cause: io::Error| {
            let doing = format!("exchange registered memory with {}", self.health.peers()[peer]);
            Error::system(
                doing,
                cause,
                "register at the same point on all ranks; see whether that process lives",
            )
        };
        let mine = region_header(index, bytes);
        let streams = || self.streams.iter().enumerate().filter_map(|(peer, s)| Some((peer, s.as_ref()?)));
        for (peer, stream) in streams() {
            send(stream, &mine, &[file.as_fd()]).map_err(|cause| failed(peer, cause))?;
        }
        let mut theirs: Vec<_> = self.streams.iter().map(|_| None).collect();
        for (peer, stream) in streams() {
            let opening = Opening { peer, channel: self.channel, limit, health: &self.health };
            let (words, files) = opening.until(stream, || receive_whole::<REGION_HEADER>(stream))?;
            check_header(mine, words, &self.health.peers()[peer])?;
            let file =
                files.into_iter().next().ok_or_else(|| failed(peer, io::ErrorKind::InvalidData.into()))?;
            theirs[peer] = Some(Region::map(&file, bytes).map_err(|cause| failed(peer, cause))?);
        }
        Ok(theirs)
    }
}

/// Maps the segment of the rank at place `theirs` among `ranks`, for the one at `place`.
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

/// What the ranks of one host have given each other, in their order.
pub(crate) struct HostSegments {
    /// This rank's place among them.
    pub(crate) place: usize,
    /// This rank's own, and those of the peers with which it shares memory.
    pub(crate) segments: Vec<Option<Arc<Segment>>>,
    /// Two of them that share no memory, if there are any: all ranks know whether.
    pub(crate) missing: Option<(usize, usize)>,
    /// Why this rank can have no shared memory.
    pub(crate) refusal: Option<Error>,
    /// With which ranks it shares none, and why, where it has some itself.
    pub(crate) apart: Vec<(usize, io::Error)>,
    /// Ends this rank's sleep where it waits for descriptors.
    pub(crate) waker: Arc<Doorbell>,
    streams: Vec<Option<UnixStream>>,
}

/// What came of the exchange with one peer.
struct PeerExchange {
    peer: usize,
    stream: UnixStream,
    /// The peer's segment, or why there is none.
    theirs: io::Result<Arc<Segment>>,
}

/// What one side says in the end.
struct SharingReport {
    /// Whether it shares memory with this peer.
    with_you: bool,
    /// A rank with which it shares none.
    apart: Option<usize>,
}

impl SharingReport {
    const BYTES: usize = 1 + 4;

    fn write(&self) -> [u8; Self::BYTES] {
        let mut bytes = [u8::from(self.with_you); Self::BYTES];
        bytes[1..].copy_from_slice(&self.apart.map_or(u32::MAX, |rank| rank as u32).to_le_bytes());
        bytes
    }

    /// What a peer in a world of `size` ranks has written.
    fn read(bytes: [u8; Self::BYTES], size: usize) -> Self {
        let [with_you, apart @ ..] = bytes;
        let apart = u32::from_le_bytes(apart);
        let apart = (apart != u32::MAX).then_some((apart as usize).min(size - 1));
        SharingReport { with_you: with_you == 1, apart }
    }
}

pub(crate) struct ShmFabric {
    member: Arc<Membership>,
    /// Names at which the ranks are called, by rank.
    names: Vec<String>,
    listener: DataListener<Caller>,
}

impl ShmFabric {
    pub(crate) fn new(prepared: ShmPrepared, member: Arc<Membership>) -> Result<Self> {
        let name =
            |rank| String::from_utf8(member.announcement(rank).to_vec()).map_err(|_| member.unreadable(rank));
        let names = (0..member.size()).map(name).collect::<Result<_>>()?;
        let listener = DataListener::open(prepared, &member.peers)?;
        Ok(ShmFabric { member, names, listener })
    }

    fn failed(&self, peer: usize, cause: io::Error) -> Error {
        let doing = format!("exchange shared memory with {}", self.member.health.peers()[peer]);
        Error::system(
            doing,
            cause,
            "use the mixed or the tcp transport, or see whether that process is alive",
        )
    }

    /// The peer's files, in exchange for this rank's, and the socket over which they came.
    fn exchange(
        &self,
        peer: usize,
        channel: u16,
        mine: &[BorrowedFd<'_>],
    ) -> Result<(Option<SegmentFiles>, UnixStream)> {
        let Membership { rank, peers, health, limit, .. } = &*self.member;
        let failed = |cause| self.failed(peer, cause);
        let call = Call { channel, socket: 0, rank: peer.max(*rank) };
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

    /// Gives `ranks`, this one among them, a segment of this rank, and takes theirs.
    pub(crate) fn gather(&self, channel: u16, ranks: &[usize]) -> Result<HostSegments> {
        let waker = Arc::new(Doorbell::new()?);
        let place = ranks.iter().position(|peer| *peer == self.member.rank).unwrap_or_default();
        let (mine, file, refusal) = match Segment::create(ranks.len(), place, Arc::clone(&waker)) {
            Ok((mine, file)) => (Some(mine), Some(file), None),
            Err(refusal) => (None, None, Some(refusal)),
        };
        let files: Vec<BorrowedFd<'_>> = file.iter().flat_map(|file| [file.as_fd(), waker.as_fd()]).collect();
        let mut pairs = Vec::new();
        for (theirs, peer) in ranks.iter().copied().enumerate().filter(|(theirs, _)| *theirs != place) {
            let (files, stream) = self.exchange(peer, channel, &files)?;
            let theirs = match files {
                Some(files) => map(files, ranks.len(), theirs, place),
                None => Err(io::Error::new(io::ErrorKind::OutOfMemory, "it can have none: see what it says")),
            };
            pairs.push(PeerExchange { peer, stream, theirs });
        }
        self.prove(channel, mine.as_deref(), &mut pairs)?;
        let missing = self.compare(channel, refusal.is_some(), &mut pairs)?;
        let mut segments = Vec::new();
        let mut streams = Vec::new();
        let mut apart = Vec::new();
        for PeerExchange { peer, stream, theirs } in pairs {
            streams.push(Some(stream));
            segments.push(theirs.map_err(|why| apart.push((peer, why))).ok());
        }
        segments.insert(place, mine);
        streams.insert(place, None);
        Ok(HostSegments { place, segments, missing, refusal, apart, waker, streams })
    }

    /// Shows every peer what its segment says, and drops those that do not show what `mine` does.
    fn prove(&self, channel: u16, mine: Option<&Segment>, pairs: &mut [PeerExchange]) -> Result<()> {
        for PeerExchange { peer, stream, theirs } in &*pairs {
            let proof = theirs.as_ref().map_or(Proof::default(), |theirs| theirs.proof());
            send(stream, &proof, &[]).map_err(|cause| self.failed(*peer, cause))?;
        }
        for PeerExchange { peer, stream, theirs } in pairs {
            let (shown, _) = self.opening(*peer, channel).until(stream, || receive_whole::<PROOF>(stream))?;
            if theirs.is_ok() && mine.is_none_or(|mine| mine.proof() != shown) {
                *theirs = Err(io::Error::other("it has not mapped this rank's memory"));
            }
        }
        Ok(())
    }

    /// Says to every peer whether this rank shares memory with that one and with all, and drops those that say they do
    /// not. Two ranks of this host that share none, if there are any, or a rank that has none, twice.
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
                *theirs = Err(io::Error::other("it could not map this rank's memory"));
            }
        }
        Ok(apart)
    }

    fn opening(&self, peer: usize, channel: u16) -> Opening<'_> {
        Opening { peer, channel, limit: self.member.limit, health: &self.member.health }
    }

    /// The endpoint of a world whose ranks have all given a segment.
    pub(crate) fn endpoint(&self, channel: u16, gathered: HostSegments) -> Result<Rc<dyn Transport>> {
        let Membership { rank, health, traffic, .. } = &*self.member;
        let rank = *rank;
        let health = Arc::clone(health);
        let traffic = traffic.tally(TransportKind::Shm);
        if let Some(refusal) = gathered.refusal {
            return Err(refusal);
        }
        if let Some((one, other)) = gathered.missing {
            let why = gathered.apart.first().map_or_else(String::new, |(_, why)| format!(": {why}"));
            let one = &health.peers()[one];
            let other = &health.peers()[other];
            let what = format!("{one} and {other} share no memory on channel {channel}{why}");
            return Err(Error::setup(
                what,
                "use the mixed or the tcp transport, or see what these ranks say",
            ));
        }
        // All are there, as no pair is missing.
        let segments: Vec<_> = gathered.segments.into_iter().flatten().collect();
        let bell = Arc::clone(&segments[rank]) as Arc<dyn Bell>;
        let identity = Identity::new(&self.member, TransportKind::Shm, bell);
        let peers = (0..segments.len()).collect();
        let wire = ShmWire::new(rank, segments.clone(), peers, Arc::clone(&health), ParkMode::Futex);
        let sockets = RegistrationSockets { channel, streams: gathered.streams, health: Arc::clone(&health) };
        let crowded = identity.crowded;
        let context = ShmContext { rank, segments, regions: Regions::new(), health, traffic, crowded };
        Ok(Rc::new(ShmEndpoint::new(StreamEndpoint::new(identity, wire), context, sockets)))
    }
}

impl Fabric for ShmFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let ranks: Vec<usize> = (0..self.member.size()).collect();
        self.endpoint(channel, self.gather(channel, &ranks)?)
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
        let opening = Opening { peer, channel: 0, limit: *limit, health };
        match opening.probe(&peers.key, *rank, connect) {
            Ok(()) => ProbeResult::Shared,
            Err(error) if reached => ProbeResult::SameKernel(error.to_string()),
            Err(error) => ProbeResult::Unreachable(error.to_string()),
        }
    }
}
