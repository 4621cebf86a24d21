//! Connects processes of one host: each pair exchanges its segments over a unix socket, the higher rank calling.
//!
//! ```text
//! caller → callee   a byte that carries the caller's segment, call
//! callee → caller   a byte that carries the callee's segment
//! ```

use super::endpoint::ShmWire;
use super::link::Segment;
use crate::bootstrap::doorway::{Accept, Call, Doorway, PATIENCE};
use crate::bootstrap::join::Roster;
use crate::bootstrap::{abstract_address, random, same_user};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::stream::endpoint::{Identity, StreamEndpoint};
use crate::transport::{Bell, Traffic, Transport, TransportKind};
use crate::world::Fabric;
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

impl Accept for ShmDoor {
    /// The stream on which the caller waits for this rank's segment, and the caller's segment.
    type Connection = (UnixStream, OwnedFd);

    fn accept(&self, job: &[u8; 16]) -> io::Result<(Call, Self::Connection)> {
        let (mut stream, _) = self.listener.accept()?;
        stream.set_nonblocking(false)?;
        same_user(&stream)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let introduce = |stream: &mut UnixStream| {
            let file = receive_file(stream)?;
            Ok((Call::hear(job, stream)?, file))
        };
        let (call, file) = introduce(&mut stream).map_err(|error: io::Error| match error.kind() {
            // A silent caller is its own fault, and not an empty queue.
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        Ok((call, (stream, file)))
    }
}

fn send_file(stream: &UnixStream, file: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_file(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no segment was handed over"))
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
        if peer > self.rank {
            let call = Call { channel, rank: peer };
            let (stream, theirs) = self.doorway.await_call(call, self.limit, &self.health)?;
            send_file(&stream, mine).map_err(failed)?;
            return Ok(theirs);
        }
        let call = || {
            let mut stream = UnixStream::connect_addr(&abstract_address(&self.roster.cards[peer].data)?)?;
            same_user(&stream)?;
            stream.set_read_timeout(Some(self.limit))?;
            send_file(&stream, mine)?;
            Call { channel, rank: self.rank }.say(&self.roster.job, &mut stream)?;
            receive_file(&stream)
        };
        call().map_err(failed)
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
