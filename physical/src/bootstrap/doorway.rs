//! Data connections: every pair of ranks makes one per channel, whenever both have come to open it.
//!
//! The higher rank connects to the lower one's listener and says who it is; the lower one accepts. A connection for a
//! channel that is not being opened here yet is put aside for the thread that will open it.
//!
//! ```text
//! caller → callee   MAGIC job:16 channel:u16 socket:u16 rank:u32
//! ```

use super::message::malformed;
use super::{deadline, exhausted};
use crate::doorbell::timespec;
use crate::error::{Error, Result};
use crate::health::Health;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"hexadata";
const WORDS: usize = 8 + 16 + 2 + 2 + 4;

/// How long a caller may take to say who it is.
const PATIENCE: Duration = Duration::from_secs(2);
/// Callers that have not yet said who they are; more wait in the listener's queue.
const CROWD: usize = 64;
/// How often a thread looks whether another one has put its connection aside, or the world has failed.
const TICK: Duration = Duration::from_millis(10);

/// Who is calling, and for which channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) channel: u16,
    /// Which of several connections for the channel.
    pub(crate) socket: u16,
    pub(crate) rank: usize,
}

impl Call {
    pub(crate) fn say(self, job: &[u8; 16], to: &mut impl Write) -> io::Result<()> {
        let (channel, socket) = (self.channel.to_le_bytes(), self.socket.to_le_bytes());
        let rank = (self.rank as u32).to_le_bytes();
        to.write_all(&[MAGIC.as_slice(), job, &channel, &socket, &rank].concat())
    }

    fn parse(job: &[u8; 16], words: &[u8; WORDS]) -> io::Result<Self> {
        let (head, tail) = words.split_at(24);
        let [c0, c1, s0, s1, rank @ ..] = tail else { return Err(malformed()) };
        if head != [MAGIC.as_slice(), job].concat() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a caller of this job"));
        }
        let rank = rank.try_into().map(u32::from_le_bytes).map_err(|_| malformed())?;
        let (channel, socket) = (u16::from_le_bytes([*c0, *c1]), u16::from_le_bytes([*s0, *s1]));
        Ok(Call { channel, socket, rank: rank as usize })
    }
}

/// A listener for data connections. Nothing here blocks.
pub(crate) trait Accept: AsFd {
    type Connection;

    /// The next caller, or `WouldBlock`.
    fn accept(&self) -> io::Result<Self::Connection>;

    /// Reads what the caller says; 0 at its end.
    fn hear(&self, connection: &mut Self::Connection, into: &mut [u8]) -> io::Result<usize>;
}

/// A caller that has not yet said who it is.
struct Stranger<C> {
    connection: C,
    words: [u8; WORDS],
    filled: usize,
    since: Instant,
}

struct Hall<C> {
    strangers: Vec<Stranger<C>>,
    /// Connections for channels that are not open here yet.
    aside: HashMap<Call, C>,
}

pub(crate) struct Doorway<A: Accept> {
    listener: A,
    job: [u8; 16],
    hall: Mutex<Hall<A::Connection>>,
}

impl<A: Accept> Doorway<A> {
    pub(crate) fn new(listener: A, job: [u8; 16]) -> Self {
        let hall = Mutex::new(Hall { strangers: Vec::new(), aside: HashMap::new() });
        Doorway { listener, job, hall }
    }

    /// Waits for the connection of one caller.
    pub(crate) fn await_call(&self, call: Call, limit: Duration, health: &Health) -> Result<A::Connection> {
        let wait = Wait { peer: call.rank, channel: call.channel, limit, health };
        wait.until(&self.listener, || self.look(call))
    }

    /// Lets in who has come, and finds the wanted connection.
    fn look(&self, wanted: Call) -> io::Result<Option<A::Connection>> {
        let hall = &mut *self.hall.lock().unwrap_or_else(PoisonError::into_inner);
        while hall.strangers.len() < CROWD {
            match self.listener.accept() {
                Ok(connection) => {
                    let (words, filled, since) = ([0; WORDS], 0, Instant::now());
                    hall.strangers.push(Stranger { connection, words, filled, since });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if exhausted(&error) => return Err(error),
                Err(error) => tracing::warn!("turned a data connection away: {error}"),
            }
        }
        for stranger in std::mem::take(&mut hall.strangers) {
            match self.introduce(stranger) {
                Ok(Introduced::Caller(call, connection)) => drop(hall.aside.insert(call, connection)),
                Ok(Introduced::NotYet(stranger)) => hall.strangers.push(stranger),
                Err(error) => tracing::warn!("turned a data connection away: {error}"),
            }
        }
        Ok(hall.aside.remove(&wanted))
    }

    fn introduce(&self, mut stranger: Stranger<A::Connection>) -> io::Result<Introduced<A::Connection>> {
        while stranger.filled < WORDS {
            match self.listener.hear(&mut stranger.connection, &mut stranger.words[stranger.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => stranger.filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if stranger.since.elapsed() > PATIENCE => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => return Ok(Introduced::NotYet(stranger)),
            }
        }
        Ok(Introduced::Caller(Call::parse(&self.job, &stranger.words)?, stranger.connection))
    }
}

enum Introduced<C> {
    Caller(Call, C),
    NotYet(Stranger<C>),
}

/// What a thread that opens a channel waits for.
pub(crate) struct Wait<'a> {
    pub(crate) peer: usize,
    pub(crate) channel: u16,
    pub(crate) limit: Duration,
    pub(crate) health: &'a Health,
}

impl Wait<'_> {
    /// Looks again and again, whenever `source` may be ready, until something is found, the peer is known not to come, or
    /// the limit is over.
    pub(crate) fn until<T>(
        &self,
        source: &impl AsFd,
        mut look: impl FnMut() -> io::Result<Option<T>>,
    ) -> Result<T> {
        let Wait { peer, channel, limit, health } = self;
        let deadline = deadline(*limit);
        let who = &health.peers()[*peer];
        let refused = |what: String| Err(Error::setup(what, "all ranks must open the same channels"));
        loop {
            // Asked first: whoever left has called before.
            let left = health.has_left(*peer);
            let found = look().map_err(|cause| {
                let remedy = "raise the limit of open files (ulimit -n), or see why that process ended";
                Error::system(format!("open channel {channel} with {who}"), cause, remedy)
            })?;
            match found {
                Some(found) => return Ok(found),
                None if left => return refused(format!("{who} finished without opening channel {channel}")),
                None if health.verdict().is_some() => {
                    return refused(format!("channel {channel} was given up"));
                }
                None if Instant::now() > deadline => {
                    return refused(format!("{who} did not open channel {channel} within {limit:?}"));
                }
                None => {}
            }
            let _ = poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&timespec(TICK)));
        }
    }
}
