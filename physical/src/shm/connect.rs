//! Connects processes of one host: each pair exchanges its segments over a unix socket, the higher rank calling. The
//! socket stays, for memory that is registered later.
//!
//! ```text
//! caller → callee   call, whose first byte carries the caller's files
//! callee → caller   a byte that carries the callee's files
//! files = segment eventfd
//! ```

use super::collectives::Surroundings;
use super::endpoint::{ShmEndpoint, ShmWire};
use super::link::Segment;
use super::region::{Region, Regions, WORDS, check, words};
use crate::bootstrap::doorway::{Accept, Call, Doorway, Wait};
use crate::bootstrap::join::Roster;
use crate::bootstrap::{abstract_address, random, same_user};
use crate::doorbell::Doorbell;
use crate::drive::crowded;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::stream::endpoint::{Identity, StreamEndpoint};
use crate::transport::{Bell, Traffic, Transport, TransportKind};
use crate::world::Fabric;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Where this rank hands out its segments, before it knows its peers.
pub(crate) struct ShmDoor {
    listener: UnixListener,
    name: String,
}

impl ShmDoor {
    /// Listens at an abstract name that nobody else has.
    pub(crate) fn open() -> Result<Self> {
        let open = || -> io::Result<Self> {
            let name = format!("hexagram-data-{:032x}", u128::from_le_bytes(random()?));
            let listener = UnixListener::bind_addr(&abstract_address(&name)?)?;
            listener.set_nonblocking(true)?;
            Ok(ShmDoor { listener, name })
        };
        open().map_err(|cause| {
            Error::system("listen at an abstract unix socket", cause, "use the tcp transport")
        })
    }

    /// What peers need in order to call.
    pub(crate) fn address(&self) -> String {
        self.name.clone()
    }
}

impl AsFd for ShmDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// What a rank gives its peers: its segment, and the eventfd that wakes it.
struct Files {
    segment: OwnedFd,
    waker: OwnedFd,
}

/// A caller, and its files once they have arrived.
pub(crate) struct Caller {
    stream: UnixStream,
    files: Vec<OwnedFd>,
}

impl Accept for ShmDoor {
    type Connection = Caller;

    fn accept(&self) -> io::Result<Caller> {
        let (stream, _) = self.listener.accept()?;
        same_user(&stream)?;
        stream.set_nonblocking(true)?;
        Ok(Caller { stream, files: Vec::new() })
    }

    fn hear(&self, caller: &mut Caller, into: &mut [u8]) -> io::Result<usize> {
        let (bytes, files) = receive(&caller.stream, into)?;
        caller.files.extend(files);
        Ok(bytes)
    }
}

/// Files of one message, at most.
const FILES: usize = 2;

/// Sends bytes, the first of which carries files.
fn send(stream: &UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(files));
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
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    Ok((received.bytes, files))
}

/// A message of exactly `N` bytes that came with `F` files; `None` while nothing has come. Senders write such a message
/// at once, and it is smaller than any socket's buffer, so that it comes whole.
fn receive_whole<const N: usize, const F: usize>(stream: &UnixStream) -> io::Result<Option<Message<N, F>>> {
    let mut bytes = [0; N];
    match receive(stream, &mut bytes) {
        Ok((got, files)) if got == N => match <[OwnedFd; F]>::try_from(files) {
            Ok(files) => Ok(Some((bytes, files))),
            Err(_) => Err(io::ErrorKind::InvalidData.into()),
        },
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

type Message<const N: usize, const F: usize> = ([u8; N], [OwnedFd; F]);

/// The sockets of one endpoint to its peers, over which registered memory is handed round.
pub(super) struct Sockets {
    channel: u16,
    /// By rank; none to itself.
    streams: Vec<Option<UnixStream>>,
    health: Arc<Health>,
}

impl Sockets {
    /// Gives every peer this rank's region of a registration, and maps theirs.
    pub(super) fn trade(
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
        let mine = words(index, bytes);
        let streams = || self.streams.iter().enumerate().filter_map(|(peer, s)| Some((peer, s.as_ref()?)));
        for (peer, stream) in streams() {
            send(stream, &mine, &[file.as_fd()]).map_err(|cause| failed(peer, cause))?;
        }
        let mut theirs: Vec<_> = self.streams.iter().map(|_| None).collect();
        for (peer, stream) in streams() {
            let wait = Wait { peer, channel: self.channel, limit, health: &self.health };
            let (words, [file]) = wait.until(stream, || receive_whole::<WORDS, 1>(stream))?;
            check(mine, words, &self.health.peers()[peer])?;
            theirs[peer] = Some(Region::map(&file, bytes).map_err(|cause| failed(peer, cause))?);
        }
        Ok(theirs)
    }
}

pub(crate) struct ShmFabric {
    rank: usize,
    roster: Roster,
    doorway: Doorway<ShmDoor>,
    health: Arc<Health>,
    traffic: Arc<Traffic>,
    limit: Duration,
}

impl ShmFabric {
    pub(crate) fn new(
        rank: usize,
        door: ShmDoor,
        roster: Roster,
        health: Arc<Health>,
        limit: Duration,
    ) -> Self {
        let doorway = Doorway::new(door, roster.job);
        ShmFabric { rank, roster, doorway, health, traffic: Arc::default(), limit }
    }

    /// The peer's files, in exchange for this rank's, and the socket over which they came.
    fn exchange(&self, peer: usize, channel: u16, mine: &[BorrowedFd<'_>]) -> Result<(Files, UnixStream)> {
        let failed = |cause: io::Error| {
            let doing = format!("exchange shared memory with {}", self.health.peers()[peer]);
            Error::system(doing, cause, "see whether that process is alive")
        };
        let call = Call { channel, socket: 0, rank: self.rank.max(peer) };
        if peer > self.rank {
            let caller = self.doorway.await_call(call, self.limit, &self.health)?;
            send(&caller.stream, &[0], mine).map_err(failed)?;
            let files = <[OwnedFd; FILES]>::try_from(caller.files);
            let [segment, waker] = files.map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
            return Ok((Files { segment, waker }, caller.stream));
        }
        let introduce = || {
            let stream = UnixStream::connect_addr(&abstract_address(&self.roster.cards[peer].shm)?)?;
            same_user(&stream)?;
            let mut words = Vec::new();
            call.say(&self.roster.job, &mut words)?;
            send(&stream, &words, mine)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = introduce().map_err(failed)?;
        let wait = Wait { peer, channel, limit: self.limit, health: &self.health };
        let (_, [segment, waker]) = wait.until(&stream, || receive_whole::<1, FILES>(&stream))?;
        Ok((Files { segment, waker }, stream))
    }

    /// All ranks' segments, and sockets to them.
    fn gather(&self, channel: u16) -> Result<(Vec<Arc<Segment>>, Sockets)> {
        let size = self.roster.cards.len();
        let waker = Arc::new(Doorbell::new()?);
        let (mine, file) = Segment::create(size, Arc::clone(&waker))?;
        let (mut segments, mut streams) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for peer in 0..size {
            if peer == self.rank {
                segments.push(Arc::clone(&mine));
                streams.push(None);
                continue;
            }
            let (files, stream) = self.exchange(peer, channel, &[file.as_fd(), waker.as_fd()])?;
            let waker = Arc::new(Doorbell::from(files.waker));
            segments.push(Segment::map(&files.segment, size, waker).map_err(|cause| {
                let doing = format!("map the shared memory of {}", self.health.peers()[peer]);
                Error::system(doing, cause, "use the same build on all ranks, or the tcp transport")
            })?);
            streams.push(Some(stream));
        }
        Ok((segments, Sockets { channel, streams, health: Arc::clone(&self.health) }))
    }
}

impl Fabric for ShmFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let (segments, sockets) = self.gather(channel)?;
        let identity = Identity {
            kind: TransportKind::Shm,
            rank: self.rank,
            size: segments.len(),
            health: Arc::clone(&self.health),
            traffic: Arc::clone(&self.traffic),
            bell: Arc::clone(&segments[self.rank]) as Arc<dyn Bell>,
            crowded: crowded(self.roster.local(self.rank)),
        };
        let wire = ShmWire::new(self.rank, segments.clone(), Arc::clone(&self.health));
        let (rank, health, traffic) = (self.rank, Arc::clone(&self.health), Arc::clone(&self.traffic));
        let crowded = identity.crowded;
        let around = Surroundings { rank, segments, regions: Regions::new(), health, traffic, crowded };
        Ok(Rc::new(ShmEndpoint::new(StreamEndpoint::new(identity, wire), around, sockets)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }
}
