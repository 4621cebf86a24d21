//! The rendezvous: rank 0 collects every rank's info and gives all of them the peers.
//!
//! ```text
//! both               handshake, as in `handshake`
//! joiner → rank 0  RANK:u32 size:u32 rank:u32 pid:u32 host:text        at once, with its proof
//! rank 0 → joiner  REGISTERED:u32 rank:u32 pid:u32 host:text               at once: who rank 0 is
//! joiner → rank 0  JOIN:u32 info settings                                as in `info`
//!                  | GIVEN_UP:u32 cause:text                             it does not join after all
//! rank 0 → joiner  PEERS:u32 peers                                   once everyone is there
//!                  | REFUSED:u32 reason:text remedy:text                 somebody does not fit, or is missing
//!                  | FAILED:u32 rank:u32 pid:u32 host:text cause:text    that rank has ended
//! launcher → rank 0  ENDED:u32 rank:u32 pid:u32 host:text cause:text     instead of RANK: one of its ranks has ended
//! ```
//!
//! Only strangers are turned away, and a joiner that is pushed aside by them comes again. Who has proved to belong to
//! the job keeps its connection, so that its end is the end of a process: both sides name it at once. Who was built or
//! told otherwise than rank 0, or has ended, ends the rendezvous for all: the job could never be whole.
//!
//! Here is the newcomers' side; `lead` is rank 0's.

use super::handshake::{Build, authenticate};
use super::hosts::Hosts;
use super::message::{Incoming, Outgoing, malformed};
use super::peer_info::{JoinRequest, PeerInfo, PeerTable};
use super::registered;
use super::rendezvous::Stream;
use super::secret::Secret;
use super::variables::Placement;
use super::{deadline, is_cut_off, is_late};
use crate::error::{During, Error, Peer, Result};
use crate::health::Health;
use crate::runtime;
use crate::socket::Tls;
use crate::transport::Traffic;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const REFUSED: usize = 0;
const PEERS: usize = 1;
const REGISTERED: usize = 2;
const FAILED: usize = 3;

const RANK: usize = 0;
const ENDED: usize = 1;

const JOIN: usize = 0;
const GIVEN_UP: usize = 1;

/// How long rank 0 may take to answer at its deadline, or a joiner to take what is written to it.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a joiner waits for rank 0's greeting before it tries again: something else may listen there. Each time it
/// waits twice as long, as rank 0 may be busy with others.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two tries to reach a rank 0 that is not there yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The same for each rank of a large job: all together ask no more often than once in so long.
const RETRY_INTERVAL_PER_RANK: Duration = Duration::from_millis(1);

/// What everyone says who has proved to belong to the job.
pub(super) enum Hello {
    /// A rank, and how many ranks it was told of.
    Rank(Peer, usize),
    /// A launcher: this rank of it has ended, and how, as a verb phrase.
    Ended(Peer, String),
}

impl Hello {
    pub(super) fn write(&self) -> Vec<u8> {
        let message = match self {
            Hello::Rank(peer, size) => put(Outgoing::default().number(RANK).number(*size), peer),
            Hello::Ended(peer, cause) => put(Outgoing::default().number(ENDED), peer).text(cause),
        };
        message.whole()
    }

    pub(super) fn read(message: &mut Incoming) -> io::Result<Self> {
        match message.number()? {
            RANK => {
                let size = message.number()?;
                Ok(Hello::Rank(peer(message)?, size))
            }
            ENDED => Ok(Hello::Ended(peer(message)?, message.text()?)),
            _ => Err(malformed()),
        }
    }
}

/// What a joiner says once it has a seat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MemberMessage {
    Join(Box<JoinRequest>),
    /// It does not join after all; why, as a verb phrase.
    GiveUp(String),
}

impl MemberMessage {
    pub(super) fn write(&self) -> Outgoing {
        match self {
            MemberMessage::Join(request) => request.write(Outgoing::default().number(JOIN)),
            MemberMessage::GiveUp(cause) => Outgoing::default().number(GIVEN_UP).text(cause),
        }
    }

    pub(super) fn read(message: &mut Incoming) -> io::Result<Self> {
        match message.number()? {
            JOIN => JoinRequest::read(message).map(Box::new).map(MemberMessage::Join),
            GIVEN_UP => message.text().map(MemberMessage::GiveUp),
            _ => Err(malformed()),
        }
    }
}

/// What rank 0 says to a joiner.
pub(super) enum LeaderMessage {
    Registered(Peer),
    /// What follows is a peers.
    Peers(Incoming),
    Refused {
        reason: String,
        remedy: String,
    },
    /// A rank has ended, and how.
    Failed(Peer, String),
}

impl LeaderMessage {
    pub(super) fn registered(leader: &Peer) -> Outgoing {
        put(Outgoing::default().number(REGISTERED), leader)
    }

    pub(super) fn peers(infos: &[PeerInfo], job: &[u8; 16]) -> Outgoing {
        PeerTable::write(infos, job, Outgoing::default().number(PEERS))
    }

    pub(super) fn refused(reason: &str, remedy: &str) -> Outgoing {
        Outgoing::default().number(REFUSED).text(reason).text(remedy)
    }

    pub(super) fn failed(culprit: &Peer, cause: &str) -> Outgoing {
        put(Outgoing::default().number(FAILED), culprit).text(cause)
    }

    fn receive(stream: &mut Stream) -> io::Result<Self> {
        Self::read(Incoming::receive(stream)?)
    }

    pub(super) fn read(mut message: Incoming) -> io::Result<Self> {
        match message.number()? {
            REGISTERED => peer(&mut message).map(LeaderMessage::Registered),
            PEERS => Ok(LeaderMessage::Peers(message)),
            REFUSED => Ok(LeaderMessage::Refused { reason: message.text()?, remedy: message.text()? }),
            FAILED => Ok(LeaderMessage::Failed(peer(&mut message)?, message.text()?)),
            _ => Err(malformed()),
        }
    }

    /// The error of an answer that ends the rendezvous.
    fn into_error(self) -> Error {
        match self {
            LeaderMessage::Refused { reason, remedy } => {
                Error::setup(format!("rank 0 ended the rendezvous: {reason}"), remedy)
            }
            LeaderMessage::Failed(culprit, cause) => peer_failed(culprit, cause),
            LeaderMessage::Registered(_) | LeaderMessage::Peers(_) => out_of_turn(malformed()),
        }
    }
}

fn put(message: Outgoing, peer: &Peer) -> Outgoing {
    message.number(peer.rank).number(peer.pid as usize).text(&peer.host)
}

fn peer(message: &mut Incoming) -> io::Result<Peer> {
    let rank = message.number()?;
    let pid = message.number()? as u32;
    Ok(Peer { rank, pid, host: message.text()?.into() })
}

/// The error of everyone else when a rank has ended before all have joined.
pub(super) fn peer_failed(culprit: Peer, cause: String) -> Error {
    Error::PeerFailed { culprit, cause, during: During::Joining }
}

/// How a rank has ended of which only that is known.
pub(super) const DIED: &str = "died (its connection ended)";

/// What a rank knows of its world once everyone has joined: the same for every transport between processes.
pub(crate) struct Membership {
    pub(crate) rank: usize,
    pub(crate) peers: PeerTable,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) health: Arc<Health>,
    pub(crate) traffic: Arc<Traffic>,
    /// How long to wait for another rank to open the same channel.
    pub(crate) limit: Duration,
}

impl Membership {
    pub(crate) fn size(&self) -> usize {
        self.peers.infos.len()
    }

    pub(crate) fn info(&self, rank: usize) -> &PeerInfo {
        &self.peers.infos[rank]
    }

    /// What the others know this rank by.
    pub(crate) fn mine(&self) -> &PeerInfo {
        self.info(self.rank)
    }
}

/// The connections that remain after the rendezvous.
pub(crate) enum ControlStreams {
    /// Rank 0's, to every other rank; none to itself.
    Leader(Vec<Option<Stream>>),
    /// Another rank's, to rank 0.
    Member(Stream),
}

/// A connection to rank 0, which has proved to belong to the job and knows of this rank.
pub(crate) struct LeaderConnection {
    stream: Stream,
    secret: Vec<u8>,
    leader: Peer,
}

impl LeaderConnection {
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Tells rank 0 why this rank does not join after all.
    pub(crate) fn give_up(&mut self, error: &Error) {
        // Should it not arrive, the end of the connection says the same.
        let _ = MemberMessage::GiveUp(format!("gave up: {error}")).write().send(&mut self.stream);
    }
}

/// Why one try to arrive was in vain.
enum AttemptError {
    /// The next may succeed.
    Transient(io::Error),
    /// None will.
    Fatal(Error),
}

impl From<io::Error> for AttemptError {
    fn from(cause: io::Error) -> Self {
        AttemptError::Transient(cause)
    }
}

/// A joiner that has yet to reach rank 0.
pub(crate) struct Joiner<'a> {
    pub(crate) placement: &'a Placement,
    pub(crate) mine: Peer,
    pub(crate) secret: &'a Secret,
    pub(crate) tls: Option<&'a Tls>,
    /// How long it may take.
    pub(crate) limit: Duration,
}

impl Joiner<'_> {
    /// Reaches rank 0 and proves to belong to its job; tries again until the deadline, as rank 0 may start later, or
    /// strangers may have pushed this rank aside.
    pub(crate) fn connect(&self) -> Result<LeaderConnection> {
        registered::set_registered(self.placement, false);
        let deadline = deadline(self.limit);
        let shared =
            RETRY_INTERVAL_PER_RANK.saturating_mul(u32::try_from(self.placement.size).unwrap_or(u32::MAX));
        let pause = RETRY_INTERVAL.max(shared);
        let mut timeout = GREETING_TIMEOUT;
        let mut attempt = 0;
        loop {
            let left = deadline.saturating_duration_since(runtime::now());
            let known = self.secret.read()?;
            let cause = match self.attempt(known.as_deref(), attempt, timeout.min(left), left) {
                Ok(connection) => return Ok(connection),
                Err(AttemptError::Fatal(error)) => return Err(error),
                Err(AttemptError::Transient(cause)) => cause,
            };
            // The file of an earlier job may have been read before rank 0 replaced it.
            let hopeless = cause.kind() == io::ErrorKind::PermissionDenied && self.secret.read()? == known;
            if hopeless || runtime::now() + pause > deadline {
                let rendezvous = &self.placement.rendezvous;
                let doing = match hopeless {
                    true => format!("join rank 0 at {rendezvous}"),
                    false => format!("reach rank 0 at {rendezvous} within {:?}", self.limit),
                };
                let remedy = self.placement.rendezvous.advice(&cause);
                return Err(Error::system(doing, cause, remedy));
            }
            if is_late(&cause) {
                timeout = timeout.saturating_mul(2);
            }
            attempt += 1;
            // Nothing announces that a listener has come up.
            runtime::sleep(pause);
        }
    }

    /// Asks, as a rank 0 that cannot listen, whether another rank 0 of this job does so; the error with which that one ends
    /// the rendezvous for both.
    pub(crate) fn find_other_leader(&self) -> Option<Error> {
        let deadline = deadline(GREETING_TIMEOUT.min(self.limit));
        loop {
            let left = deadline.saturating_duration_since(runtime::now());
            let known = self.secret.read().ok()?;
            match self.attempt(known.as_deref(), 0, left, left) {
                Err(AttemptError::Fatal(error)) => return Some(error),
                Err(AttemptError::Transient(cause)) if cause.kind() != io::ErrorKind::PermissionDenied => {}
                _ => return None,
            }
            if runtime::now() + RETRY_INTERVAL > deadline {
                return None;
            }
            runtime::sleep(RETRY_INTERVAL);
        }
    }

    /// One try, in which rank 0 has so much `timeout` to greet, and all the time that is `left` to offer a seat.
    fn attempt(
        &self,
        secret: Option<&[u8]>,
        attempt: usize,
        timeout: Duration,
        left: Duration,
    ) -> Result<LeaderConnection, AttemptError> {
        let secret = secret.ok_or_else(|| self.secret.missing())?;
        let mut stream = self.placement.rendezvous.connect(attempt, timeout, self.tls)?;
        stream.set_timeout(timeout)?;
        let hello = Hello::Rank(self.mine.clone(), self.placement.size).write();
        let build = authenticate(&mut stream, secret, &hello).map_err(describe_missing_greeting)?;
        if build != Build::MINE {
            // What it answers may not be readable. It learns the same from the handshake.
            let what = format!("rank 0 runs {build}, rank {} runs {}", self.mine.rank, Build::MINE);
            return Err(AttemptError::Fatal(Error::setup(what, "use the same build on all ranks")));
        }
        // From here on rank 0 takes the end of this connection for the end of this process.
        stream.set_timeout(left.saturating_add(ANSWER_TIMEOUT))?;
        let answer = LeaderMessage::receive(&mut stream)?;
        registered::set_registered(self.placement, true);
        match answer {
            LeaderMessage::Registered(leader) => {
                Ok(LeaderConnection { stream, secret: secret.to_vec(), leader })
            }
            answer => Err(AttemptError::Fatal(answer.into_error())),
        }
    }
}

/// Says what it means that no greeting came.
fn describe_missing_greeting(cause: io::Error) -> io::Error {
    let what = match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            "whoever listens there takes connections, but does not greet as rank 0 does"
        }
        io::ErrorKind::UnexpectedEof => "whoever listens there hangs up without a greeting",
        _ => return cause,
    };
    io::Error::new(cause.kind(), what)
}

fn out_of_turn(cause: io::Error) -> Error {
    Error::system("meet the other ranks", cause, "use the same build on all ranks")
}

/// Takes part in the rendezvous, as any rank but 0.
pub(crate) fn join(
    connection: LeaderConnection,
    mine: JoinRequest,
    limit: Duration,
) -> Result<(PeerTable, ControlStreams)> {
    let LeaderConnection { mut stream, secret, leader } = connection;
    let rank = mine.info.rank;
    let size = mine.settings.size;
    let failed = |cause: io::Error| match cause {
        cause if is_cut_off(&cause) => peer_failed(leader.clone(), DIED.to_owned()),
        cause => Error::system(format!("join as rank {rank}"), cause, "see what rank 0 says"),
    };
    // Rank 0 answers at its own deadline, which began earlier than this rank's or a little later.
    stream.set_timeout(limit.saturating_add(ANSWER_TIMEOUT)).map_err(failed)?;
    // Whether it arrives or not, what rank 0 has to say is in its answer.
    let _ = MemberMessage::Join(Box::new(mine)).write().send(&mut stream);
    match LeaderMessage::receive(&mut stream).map_err(failed)? {
        LeaderMessage::Peers(mut message) => {
            let peers = PeerTable::read(&mut message, size, &secret).map_err(failed)?;
            Ok((peers, ControlStreams::Member(stream)))
        }
        answer => Err(answer.into_error()),
    }
}
