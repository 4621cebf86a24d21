//! The connecting side of data connections, and the wait of both sides for a channel. `data_listener` has the grammar.

use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use crate::bootstrap::handshake::{Build, JobKey, authenticate};
use crate::bootstrap::{is_cut_off, is_late};
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::runtime::{self, PollFd, PollFlags};
use crate::system::limits;
use crate::waiting::stopwatch::{Stopwatch, Watched};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// Time between two checks whether the world has failed.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// Time after which a disconnect is the result of a probe. Unauthenticated connections may have caused an eviction,
/// and a peer without descriptors is about to report that.
const LONGEST_REFUSED: Duration = Duration::from_secs(5);
/// Longest time for one step of a connection, before a check whether the world has failed.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest time for a step of an attempt: a connection, for which two addresses may be tried, a read or a write.
const LONGEST_STEP: Duration = Duration::from_secs(4);
/// Time that a check may take beyond its longest wait. A longer gap means that this process was stopped.
const SLACK: Duration = Duration::from_millis(250);

/// Bytes by which the callee confirms that it keeps the connection.
pub(crate) const WELCOME: [u8; 1] = [1];

/// Purpose of a data connection: the caller, and the channel that it opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DialRequest {
    /// Number of the channel.
    pub(crate) channel: u16,
    /// Number of the connection, among those of the channel.
    pub(crate) socket: u16,
    /// Rank of the caller.
    pub(crate) rank: usize,
}

impl DialRequest {
    /// Number that stands for no socket.
    pub(crate) const NONE: u16 = u16::MAX;

    /// Encodes the call, with its length.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let message = MessageWriter::default().number(self.channel.into()).number(self.socket.into());
        message.number(self.rank).whole()
    }

    /// Decodes a call.
    pub(crate) fn read(message: &mut MessageReader) -> io::Result<Self> {
        let mut narrow = || u16::try_from(message.number()?).map_err(|_| malformed());
        let channel = narrow()?;
        let socket = narrow()?;
        Ok(DialRequest { channel, socket, rank: message.number()? })
    }
}

/// Performs the caller's side of the handshake, and refuses a peer with a different build.
fn authenticated<C: Read + Write>(mut connection: C, key: &JobKey, watch: &mut Stopwatch) -> io::Result<C> {
    watch.lap();
    match authenticate(&mut Watched::new(&mut connection, watch), key.bytes(), &[])? {
        Build::MINE => Ok(connection),
        build => Err(io::Error::new(io::ErrorKind::Unsupported, format!("{build} answers there"))),
    }
}

/// Reads the welcome of the callee.
fn read_welcome(connection: &mut impl Read) -> io::Result<()> {
    let mut answer = [0; WELCOME.len()];
    connection.read_exact(&mut answer)?;
    if answer == WELCOME { Ok(()) } else { Err(malformed()) }
}

/// Wait for a channel with one peer.
pub(crate) struct Dial<'a> {
    /// Rank of the peer.
    pub(crate) peer: usize,
    /// Number of the channel.
    pub(crate) channel: u16,
    /// Longest time to wait. Time in which this process was stopped does not count.
    pub(crate) limit: Duration,
    /// Health of the world, whose failure ends the wait.
    pub(crate) health: &'a Health,
}

impl Dial<'_> {
    /// Connects until the listener of the peer has confirmed `call`. `connect` makes a connection whose reads and
    /// writes end after [`STEP_TIMEOUT`]; `say` writes the encoded call, with the files that accompany it.
    ///
    /// # Errors
    /// [`Error::Setup`] if the peer has left or failed or the limit has passed, [`Error::System`] if the peer cannot
    /// be reached.
    pub(crate) fn connect<C: Read + Write>(
        &self,
        key: &JobKey,
        call: DialRequest,
        mut connect: impl FnMut() -> io::Result<C>,
        mut say: impl FnMut(&mut C, &[u8]) -> io::Result<()>,
    ) -> Result<C> {
        let words = call.to_bytes();
        let mut dial = |watch: &mut Stopwatch| -> io::Result<C> {
            let mut connection = authenticated(connect()?, key, watch)?;
            say(&mut connection, &words)?;
            watch.lap();
            Ok(connection)
        };
        let mut called = None;
        let mut attempt = |watch: &mut Stopwatch| {
            let mut connection = called.take().map_or_else(|| dial(watch), Ok)?;
            match read_welcome(&mut connection) {
                Ok(()) => Ok(connection),
                Err(error) => {
                    // The callee may have read the call, and answer late.
                    called = Some(connection).filter(|_| is_late(&error));
                    Err(error)
                }
            }
        };
        self.poll_until(LONGEST_STEP, |_, watch| match attempt(watch) {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if is_late(&error) => Ok(None),
            // Unauthenticated connections may have caused the eviction of this one.
            Err(error) if is_cut_off(&error) => {
                runtime::sleep(TICK);
                Ok(None)
            }
            Err(error) => Err(error),
        })
    }

    /// Asks the peer's listener for a connection on behalf of `rank`, and closes it again. `connect` is as in
    /// [`Dial::connect`].
    ///
    /// # Errors
    /// Those of the connection: it is not possible.
    pub(crate) fn probe<C: Read + Write>(
        &self,
        key: &JobKey,
        rank: usize,
        mut connect: impl FnMut() -> io::Result<C>,
    ) -> io::Result<()> {
        let words = DialRequest { channel: self.channel, socket: DialRequest::NONE, rank }.to_bytes();
        let mut attempt = |watch: &mut Stopwatch| -> io::Result<()> {
            let mut connection = authenticated(connect()?, key, watch)?;
            let mut connection = Watched::new(&mut connection, watch);
            connection.write_all(&words)?;
            read_welcome(&mut connection)
        };
        let mut waited = Stopwatch::with_gap(LONGEST_STEP + SLACK);
        loop {
            let hopeless = self.health.verdict().is_some() || self.health.has_left(self.peer);
            match attempt(&mut waited) {
                Err(_) if !hopeless && waited.elapsed() > self.limit => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if !hopeless && is_late(&error) => {}
                Err(error) if !hopeless && is_cut_off(&error) && waited.elapsed() < LONGEST_REFUSED => {
                    runtime::sleep(TICK);
                }
                outcome => return outcome,
            }
        }
    }

    /// Calls `look` whenever `source` may be ready, until it returns a value.
    ///
    /// # Errors
    /// As [`Dial::connect`].
    pub(crate) fn until<T>(
        &self,
        source: &impl AsFd,
        mut look: impl FnMut() -> io::Result<Option<T>>,
    ) -> Result<T> {
        self.poll_until(TICK, |at_most, _| {
            let found = look()?;
            if found.is_none() {
                let _ = runtime::poll(&mut [PollFd::new(source, PollFlags::IN)], Some(at_most));
            }
            Ok(found)
        })
    }

    /// Returns the remedy for a connection that failed with `cause`.
    fn remedy(&self, cause: &io::Error) -> String {
        let health = self.health;
        match Errno::from_io_error(cause) {
            Some(Errno::MFILE) => {
                let what = limits::open_files_for(&health.mine().to_string(), health.peers().len() - 1);
                format!("{what}; {}", limits::MORE_OPEN_FILES)
            }
            Some(Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                format!("free memory and open files on the host of {}", health.mine())
            }
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT | Errno::INVAL) => {
                "set HEXAGRAM_INTERFACE to an interface that the other hosts reach, or open its ports in the firewall"
                    .to_owned()
            }
            _ => "check why that process does not answer: it may have ended, or be on a different host than it claims \
                  (HEXAGRAM_HOST, HEXAGRAM_INTERFACE)"
                .to_owned(),
        }
    }

    /// Calls `look` until it returns a value, the peer is known not to come, or the limit has passed. `look` gets the
    /// time that it may wait, and takes at most `longest` between two checks of the stopwatch that it gets.
    pub(crate) fn poll_until<T>(
        &self,
        longest: Duration,
        mut look: impl FnMut(Duration, &mut Stopwatch) -> io::Result<Option<T>>,
    ) -> Result<T> {
        let Dial { peer, channel, limit, health } = self;
        let mut waited = Stopwatch::with_gap(longest + SLACK);
        let who = &health.peers()[*peer];
        let refused = |what: String| {
            let remedy = "create the same communicators and engines, in the same order, on all ranks";
            Err(Error::setup(what, remedy))
        };
        loop {
            // Read before the check for connections: a peer that has left has connected before.
            let left = health.has_left(*peer);
            let found = look(TICK, &mut waited).map_err(|cause| {
                let remedy = self.remedy(&cause);
                Error::system(format!("open channel {channel} with {who}"), cause, remedy)
            })?;
            match found {
                Some(found) => return Ok(found),
                None if left => return refused(format!("{who} finished without opening channel {channel}")),
                None if health.verdict().is_some() => {
                    return refused(format!("channel {channel} was abandoned"));
                }
                None if waited.elapsed() > *limit => {
                    let what = format!(
                        "{who} is late: it did not open channel {channel} within {limit:?} (HEXAGRAM_DEADLINE)"
                    );
                    return refused(what);
                }
                None => {}
            }
        }
    }
}
