//! Connects processes of one host: each pair exchanges its segments over a unix socket, the higher rank calling.
//!
//! ```text
//! caller → callee   call, whose first byte carries the caller's segment
//! callee → caller   a byte that carries the callee's segment
//! ```

use super::endpoint::ShmWire;
use super::link::Segment;
use crate::bootstrap::doorway::{Accept, Call, Doorway, Wait};
use crate::bootstrap::join::Roster;
use crate::bootstrap::{abstract_address, random, same_user};
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

/// A caller, and its segment once that has arrived.
pub(crate) struct Caller {
    stream: UnixStream,
    segment: Option<OwnedFd>,
}

impl Accept for ShmDoor {
    type Connection = Caller;

    fn accept(&self) -> io::Result<Caller> {
        let (stream, _) = self.listener.accept()?;
        same_user(&stream)?;
        stream.set_nonblocking(true)?;
        Ok(Caller { stream, segment: None })
    }

    fn hear(&self, caller: &mut Caller, into: &mut [u8]) -> io::Result<usize> {
        let (bytes, file) = receive(&caller.stream, into)?;
        caller.segment = file.or(caller.segment.take());
        Ok(bytes)
    }
}

/// Sends bytes, the first of which carries a file.
fn send(stream: &UnixStream, bytes: &[u8], file: &OwnedFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let sent = retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
}

/// Receives what there is, and the file that came with it.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(into)];
    let received = retry_on_intr(|| recvmsg(stream, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes, file))
}

/// The segment that a callee answers with; `None` while it has not.
fn receive_answer(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    match receive(stream, &mut [0]) {
        Ok((_, Some(file))) => Ok(Some(file)),
        Ok((_, None)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
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

    /// The peer's segment, in exchange for this rank's.
    fn exchange(&self, peer: usize, channel: u16, mine: &OwnedFd) -> Result<OwnedFd> {
        let failed = |cause: io::Error| {
            let doing = format!("exchange shared memory with {}", self.health.peers()[peer]);
            Error::system(doing, cause, "see whether that process is alive")
        };
        let call = Call { channel, rank: self.rank.max(peer) };
        if peer > self.rank {
            let caller = self.doorway.await_call(call, self.limit, &self.health)?;
            send(&caller.stream, &[0], mine).map_err(failed)?;
            return caller.segment.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()));
        }
        let introduce = || {
            let stream = UnixStream::connect_addr(&abstract_address(&self.roster.cards[peer].data)?)?;
            same_user(&stream)?;
            let mut words = Vec::new();
            call.say(&self.roster.job, &mut words)?;
            send(&stream, &words, mine)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = introduce().map_err(failed)?;
        let wait = Wait { peer, channel, limit: self.limit, health: &self.health };
        wait.until(&stream, || receive_answer(&stream))
    }
}

impl Fabric for ShmFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let size = self.roster.cards.len();
        let (mine, file) = Segment::create(size)?;
        let mut segments = Vec::with_capacity(size);
        for peer in 0..size {
            if peer == self.rank {
                segments.push(Arc::clone(&mine));
                continue;
            }
            let theirs = self.exchange(peer, channel, &file)?;
            segments.push(Segment::map(&theirs, size).map_err(|cause| {
                let doing = format!("map the shared memory of {}", self.health.peers()[peer]);
                Error::system(doing, cause, "use the same build on all ranks, or the tcp transport")
            })?);
        }
        let identity = Identity {
            kind: TransportKind::Shm,
            rank: self.rank,
            size,
            health: Arc::clone(&self.health),
            traffic: Arc::clone(&self.traffic),
            bell: mine as Arc<dyn Bell>,
        };
        let wire = ShmWire::new(self.rank, segments, Arc::clone(&self.health));
        Ok(Rc::new(StreamEndpoint::new(identity, wire)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }
}
