//! The side of a member in the rendezvous: connects to rank 0, sends the [`PeerInfo`](super::peer_info::PeerInfo) of
//! this rank, and receives the table of all ranks. `lead` is the side of rank 0.
//!
//! ```text
//! both               handshake, as in `handshake`
//! member → rank 0    RANK:u32 size:u32 rank:u32 pid:u32 host:text        immediately, with the proof
//! rank 0 → member    REGISTERED:u32 rank:u32 pid:u32 host:text           immediately, with the identity of rank 0
//! member → rank 0    JOIN:u32 request                                    request as in `peer_info`
//!                  | GIVEN_UP:u32 cause:text                             the member does not join after all
//! rank 0 → member    PEERS:u32 table                                     once every rank has joined
//!                  | REFUSED:u32 reason:text remedy:text                 a rank does not fit, or is missing
//!                  | FAILED:u32 rank:u32 pid:u32 host:text cause:text    that rank has ended
//! launcher → rank 0  ENDED:u32 rank:u32 pid:u32 host:text cause:text     instead of RANK: one of its ranks has ended
//! ```
//!
//! Only unauthenticated connections are rejected or evicted, and a member whose connection was evicted connects
//! again. A rank that has proved the secret keeps its connection, whose end is therefore the end of a process: both
//! sides report it immediately. A rank that differs from rank 0 in its build or settings, or that has ended, ends the
//! rendezvous for all, since the job could never be complete.

use super::attendance_file;
use super::join_messages::{Hello, LeaderMessage, MemberMessage};
use super::peer_info::{JoinRequest, PeerTable};
use super::port_conflict::{Occupant, describe_missing_greeting};
use crate::backends::socket::Tls;
use crate::bootstrap::handshake::message::malformed;
use crate::bootstrap::handshake::secret::Secret;
use crate::bootstrap::handshake::{Build, authenticate};
use crate::bootstrap::sockets::stream::RankStream;
use crate::bootstrap::variables::Placement;
use crate::bootstrap::{LONGEST, is_cut_off, is_late};
use crate::error::{Error, ErrorContext, Peer, Result};
use crate::runtime;
use crate::waiting::stopwatch::{Stopwatch, Watched};
use std::io;
use std::time::Duration;

/// Longest time that rank 0 may take to answer at its deadline, and that a member may take to read.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that rank 0 may take to send its greeting, at the first attempt. Another program may listen there. Each
/// late attempt doubles it, as rank 0 may be busy.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a step of an attempt may take beyond its timeout. A longer gap means that this process was stopped.
const SLACK: Duration = Duration::from_millis(250);
/// Time between two attempts to reach a rank 0 that does not listen yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Time between two attempts for each rank of a large job, which limits the attempts of all ranks together to one in
/// this time.
const RETRY_INTERVAL_PER_RANK: Duration = Duration::from_millis(1);

/// Creates the error of the other ranks if `culprit` ended before all had joined.
pub(crate) fn peer_failed(culprit: Peer, cause: String) -> Error {
    Error::PeerFailed { culprit, cause, context: ErrorContext::Joining }
}

/// Cause of a failure if only the end of the connection is known.
pub(crate) const DIED: &str = "died (its connection ended)";

/// Connections that stay open after the rendezvous.
pub(crate) enum ControlStreams {
    /// Connections of rank 0 by rank, `None` for itself.
    Leader(Vec<Option<RankStream>>),
    /// A member's connection to rank 0.
    Member(RankStream),
}

/// Connection to rank 0, which has proved the secret and registered this rank.
pub(crate) struct LeaderConnection {
    /// The connection itself.
    stream: RankStream,
    /// Secret that both sides have proved.
    secret: Vec<u8>,
    /// Identity of rank 0.
    leader: Peer,
}

impl LeaderConnection {
    /// Returns the connection.
    pub(crate) fn stream(&self) -> &RankStream {
        &self.stream
    }

    /// Notifies rank 0 that this rank does not join, with the reason.
    pub(crate) fn give_up(&mut self, error: &Error) {
        // If it does not arrive, the end of the connection has the same effect.
        let _ = MemberMessage::GiveUp(format!("gave up: {error}")).write().send(&mut self.stream);
    }
}

/// Reason why an attempt to connect failed.
enum AttemptError {
    /// The next attempt may succeed.
    Transient(io::Error),
    /// Rank 0 has proved the secret, but has not answered within the limit.
    Unanswered(io::Error),
    /// No attempt will succeed.
    Fatal(Error),
}

impl From<io::Error> for AttemptError {
    fn from(cause: io::Error) -> Self {
        AttemptError::Transient(cause)
    }
}

/// Member that connects to rank 0.
pub(crate) struct Joiner<'a> {
    /// Rank, size and rendezvous of this process.
    pub(crate) placement: &'a Placement,
    /// Identity of this process.
    pub(crate) mine: Peer,
    /// Source of the job's secret.
    pub(crate) secret: &'a Secret,
    /// TLS of the job, if it uses it.
    pub(crate) tls: Option<&'a Tls>,
    /// Longest time to connect. Time in which this process was stopped does not count.
    pub(crate) limit: Duration,
    /// Returns true if the rank need not join any more.
    pub(crate) is_over: &'a dyn Fn() -> bool,
}

/// Remedy if rank 0 was there at first, and is no longer there.
const LEFT: &str =
    "rank 0 had started, and has ended: its own error says why; every rank of this job has to be restarted";

/// Contact with rank 0 until an attempt failed.
#[derive(Clone, Copy)]
enum Contact {
    None,
    /// It was reached, and has a different secret.
    Refused,
    /// It accepted a connection, and closed it.
    Lost,
}

impl Contact {
    /// Returns the contact after another attempt has failed with `cause`, which is `hopeless` if the secrets differ.
    fn after(self, cause: &io::Error, hopeless: bool) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match cause.kind() {
            _ if hopeless => Contact::Refused,
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Contact::Lost,
            _ => self,
        }
    }
}

impl Joiner<'_> {
    /// Connects to rank 0 and proves the secret. Retries until the limit, since rank 0 may start later, or other
    /// connections may have caused an eviction.
    ///
    /// # Errors
    /// [`Error::System`] if rank 0 cannot be reached, or has a different secret; [`Error::Setup`] or
    /// [`Error::PeerFailed`] if rank 0 has ended the rendezvous.
    pub(crate) fn connect(&self) -> Result<LeaderConnection> {
        attendance_file::set_registered(self.placement, false);
        let pause = self.pause();
        let mut timeout = GREETING_TIMEOUT;
        let mut waited = Duration::ZERO;
        let mut attempt = 0;
        let mut occupant = Occupant::default();
        let mut contact = Contact::None;
        loop {
            let left = self.limit.min(LONGEST).saturating_sub(waited);
            let step = timeout.min(left);
            let mut watch = Stopwatch::with_gap(step + SLACK);
            let known = self.secret.read()?;
            let cause = match self.attempt(known.as_deref(), attempt, step, left, &mut watch) {
                Ok(connection) => return Ok(connection),
                Err(AttemptError::Fatal(error)) => return Err(error),
                Err(AttemptError::Unanswered(cause)) => return Err(self.cannot_connect(cause, contact)),
                Err(AttemptError::Transient(cause)) => cause,
            };
            waited += watch.elapsed();
            // The file of an earlier job may have been read before rank 0 replaced it.
            let hopeless = cause.kind() == io::ErrorKind::PermissionDenied && self.secret.read()? == known;
            contact = contact.after(&cause, hopeless);
            if hopeless || (self.is_over)() || waited + pause > self.limit {
                return Err(self.cannot_connect(cause, contact));
            }
            occupant.look(self, &cause, known.is_some(), waited);
            if is_late(&cause) {
                timeout = timeout.saturating_mul(2);
            }
            attempt += 1;
            // No event signals that a listener has started.
            runtime::sleep(pause);
            waited += pause;
        }
    }

    /// Returns the time between two attempts.
    fn pause(&self) -> Duration {
        let ranks = u32::try_from(self.placement.size).unwrap_or(u32::MAX);
        RETRY_INTERVAL.max(RETRY_INTERVAL_PER_RANK.saturating_mul(ranks))
    }

    /// Creates the error after the last attempt, which failed with `cause`.
    fn cannot_connect(&self, cause: io::Error, contact: Contact) -> Error {
        let rendezvous = &self.placement.rendezvous;
        let doing = match contact {
            Contact::Refused => format!("join rank 0 at {rendezvous}"),
            Contact::None | Contact::Lost => format!("reach rank 0 at {rendezvous} within {:?}", self.limit),
        };
        let remedy = match contact {
            Contact::Lost if cause.kind() == io::ErrorKind::ConnectionRefused => LEFT.to_owned(),
            _ => rendezvous.advice(&cause),
        };
        Error::system(doing, cause, remedy)
    }

    /// Returns the error with which another rank 0 of this job, if there is one, ends the rendezvous for both. For a
    /// rank 0 that cannot listen.
    pub(crate) fn find_other_leader(&self) -> Option<Error> {
        let limit = GREETING_TIMEOUT.min(self.limit);
        let mut watch = Stopwatch::with_gap(limit + SLACK);
        loop {
            let left = limit.saturating_sub(watch.elapsed());
            let known = self.secret.read().ok()?;
            match self.attempt(known.as_deref(), 0, left, left, &mut watch) {
                Err(AttemptError::Fatal(error)) => return Some(error),
                Err(AttemptError::Transient(cause)) if cause.kind() != io::ErrorKind::PermissionDenied => {}
                _ => return None,
            }
            if watch.elapsed() + RETRY_INTERVAL > limit {
                return None;
            }
            runtime::sleep(RETRY_INTERVAL);
        }
    }

    /// Performs one attempt. Each step before the registration may take `timeout`, the registration all the time that
    /// is `left`. Checks `watch` after each step.
    fn attempt(
        &self,
        secret: Option<&[u8]>,
        attempt: usize,
        timeout: Duration,
        left: Duration,
        watch: &mut Stopwatch,
    ) -> Result<LeaderConnection, AttemptError> {
        let secret = secret.ok_or_else(|| self.secret.missing())?;
        let mut stream = self.placement.rendezvous.connect(attempt, timeout, self.tls, watch)?;
        stream.set_timeout(timeout)?;
        let hello = Hello::Rank(self.mine.clone(), self.placement.size).write();
        let build = authenticate(&mut Watched::new(&mut stream, watch), secret, &hello)
            .map_err(describe_missing_greeting)?;
        if build != Build::MINE {
            // Its answer may have a different encoding. The handshake gives it the same information.
            let what = format!("rank 0 runs {build}, rank {} runs {}", self.mine.rank, Build::MINE);
            return Err(AttemptError::Fatal(Error::setup(what, "use the same build on all ranks")));
        }
        // From here on, rank 0 treats the end of this connection as the end of this process.
        stream.set_timeout(left.saturating_add(ANSWER_TIMEOUT))?;
        let answer = LeaderMessage::receive(&mut stream).map_err(unanswered)?;
        attendance_file::set_registered(self.placement, true);
        match answer {
            LeaderMessage::Registered(leader) => {
                Ok(LeaderConnection { stream, secret: secret.to_vec(), leader })
            }
            answer => Err(AttemptError::Fatal(rendezvous_error(answer))),
        }
    }
}

/// Distinguishes a late answer from the end of a connection. A stop of this process restarts its wait.
fn unanswered(cause: io::Error) -> AttemptError {
    if !is_late(&cause) {
        return AttemptError::Transient(cause);
    }
    AttemptError::Unanswered(io::Error::new(cause.kind(), "rank 0 answers, but does not register this rank"))
}

/// Creates the error for an answer that ends the rendezvous.
fn rendezvous_error(answer: LeaderMessage) -> Error {
    match answer {
        LeaderMessage::Refused { reason, remedy } => {
            Error::setup(format!("rank 0 ended the rendezvous: {reason}"), remedy)
        }
        LeaderMessage::Failed(culprit, cause) => peer_failed(culprit, cause),
        LeaderMessage::Registered(_) | LeaderMessage::Peers(_) => out_of_turn(malformed()),
    }
}

/// Creates the error for an answer that violates the protocol.
fn out_of_turn(cause: io::Error) -> Error {
    Error::system("join the rendezvous", cause, "use the same build on all ranks")
}

/// Sends this rank's request to rank 0, and waits until all ranks have joined. Returns the table of the ranks, and the
/// connection for `control`.
///
/// # Errors
/// [`Error::PeerFailed`] if a rank has ended, [`Error::Setup`] if the ranks do not match or one is missing.
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
        cause => Error::system(format!("join as rank {rank}"), cause, "see the error of rank 0"),
    };
    // Rank 0 answers at its own deadline, which began earlier than that of this rank or slightly later.
    stream.set_timeout(limit.saturating_add(ANSWER_TIMEOUT)).map_err(failed)?;
    // The answer shows whether it arrived.
    let _ = MemberMessage::Join(Box::new(mine)).write().send(&mut stream);
    let answer = LeaderMessage::receive(&mut stream).inspect_err(|cause| {
        if is_late(cause) {
            // Otherwise rank 0, which may have been stopped, would consider this rank dead.
            let why =
                format!("gave up: rank 0 has not answered within {:?}", limit.saturating_add(ANSWER_TIMEOUT));
            let _ = MemberMessage::GiveUp(why).write().send(&mut stream);
        }
    });
    match answer.map_err(failed)? {
        LeaderMessage::Peers(mut message) => {
            let peers = PeerTable::read(&mut message, size, &secret).map_err(failed)?;
            Ok((peers, ControlStreams::Member(stream)))
        }
        answer => Err(rendezvous_error(answer)),
    }
}
