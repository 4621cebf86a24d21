//! Data connections: every pair of ranks makes one per channel, whenever both have come to open it.
//!
//! The higher rank connects to the lower one's listener and says who it is; the lower one accepts. A connection for a
//! channel that is not being opened here yet is put aside for the thread that will open it.
//!
//! ```text
//! caller → callee   MAGIC job:16 channel:u16 rank:u32
//! ```

use crate::error::{Error, Result};
use crate::health::Health;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"hexadata";
const WORDS: usize = 8 + 16 + 2 + 4;

/// How long a caller may take to say who it is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// How often a thread looks whether another one has put its connection aside, or the world has failed.
const TICK: Duration = Duration::from_millis(20);

/// Who is calling, and for which channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) channel: u16,
    pub(crate) rank: usize,
}

impl Call {
    pub(crate) fn say(self, job: &[u8; 16], to: &mut impl Write) -> io::Result<()> {
        let rank = (self.rank as u32).to_le_bytes();
        to.write_all(&[MAGIC.as_slice(), job, &self.channel.to_le_bytes(), &rank].concat())
    }

    pub(crate) fn hear(job: &[u8; 16], from: &mut impl Read) -> io::Result<Self> {
        let mut words = [0; WORDS];
        from.read_exact(&mut words)?;
        let (head, tail) = words.split_at(24);
        let [c0, c1, rank @ ..] = tail else { return Err(super::message::malformed()) };
        if head != [MAGIC.as_slice(), job].concat() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a caller of this job"));
        }
        let rank = rank.try_into().map(u32::from_le_bytes).map_err(|_| super::message::malformed())?;
        Ok(Call { channel: u16::from_le_bytes([*c0, *c1]), rank: rank as usize })
    }
}

/// A non-blocking listener for data connections.
pub(crate) trait Accept: AsFd {
    type Connection;

    /// The next caller that knows the job, or `WouldBlock`.
    fn accept(&self, job: &[u8; 16]) -> io::Result<(Call, Self::Connection)>;
}

pub(crate) struct Doorway<A: Accept> {
    listener: A,
    job: [u8; 16],
    /// Connections for channels that are not open here yet.
    aside: Mutex<HashMap<Call, A::Connection>>,
}

impl<A: Accept> Doorway<A> {
    pub(crate) fn new(listener: A, job: [u8; 16]) -> Self {
        Doorway { listener, job, aside: Mutex::default() }
    }

    /// Waits for the connection of one caller.
    pub(crate) fn await_call(&self, call: Call, limit: Duration, health: &Health) -> Result<A::Connection> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(connection) = self.look(call) {
                return Ok(connection);
            }
            if let Some(verdict) = health.verdict() {
                let what =
                    format!("{} {}, while channel {} opened", verdict.culprit, verdict.cause, call.channel);
                return Err(Error::setup(what, "start all ranks again"));
            }
            if Instant::now() > deadline {
                let what = format!(
                    "{} did not open channel {} within {limit:?}",
                    health.peers()[call.rank],
                    call.channel
                );
                return Err(Error::setup(what, "all ranks must open the same channels"));
            }
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&tick));
        }
    }

    /// Takes what is there, and keeps the wanted connection.
    fn look(&self, wanted: Call) -> Option<A::Connection> {
        let mut aside = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
        while !aside.contains_key(&wanted) {
            match self.listener.accept(&self.job) {
                Ok((call, connection)) => drop(aside.insert(call, connection)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => tracing::warn!("turned a data connection away: {error}"),
            }
        }
        aside.remove(&wanted)
    }
}
