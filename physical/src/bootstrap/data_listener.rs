//! Data connections: every pair of ranks makes one per channel, whenever both have come to open it.
//!
//! The higher rank connects to the lower one's listener, proves that it belongs to the job, and says who it is. A thread
//! at each listener lets callers in at any time, so that nobody waits for a rank that computes, and puts their connections
//! unclaimed for the thread that will open the channel. It sleeps while nobody calls.
//!
//! ```text
//! both              handshake, as in `handshake`
//! caller → callee   call = length:u32 channel:u32 socket:u32 rank:u32
//! callee → caller   WELCOME
//! ```
//!
//! A call for the socket NONE asks only whether the door is open: the connection ends with the welcome.

use super::acceptor::{Accept, Acceptor};
use super::handshake::{Build, Key, authenticate};
use super::message::{Incoming, Outgoing, malformed};
use super::peer_info::PeerTable;
use super::pending::Authenticated;
use super::{deadline, is_cut_off, is_late};
use crate::doorbell::Doorbell;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::limits;
use crate::runtime::{self, Instant, PollFd, PollFlags, Thread};
use crate::transport::Bell;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The callee has put the connection unclaimed.
const WELCOME: [u8; 1] = [1];
/// How often those who wait look whether the world has failed.
const TICK: Duration = Duration::from_millis(10);
/// How often somebody who only asks is turned away before that is the answer: strangers may have pushed it unclaimed.
const MAX_REFUSALS: u32 = 50;
/// Longest that one step of a call may take before a look whether the world has failed.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// How long this process may be without descriptors for callers before that is its failure.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Who is calling, and for which channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) channel: u16,
    /// Which of several connections for the channel.
    pub(crate) socket: u16,
    pub(crate) rank: usize,
}

impl Call {
    /// No socket.
    const NONE: u16 = u16::MAX;

    fn to_bytes(self) -> Vec<u8> {
        let message = Outgoing::default().number(self.channel.into()).number(self.socket.into());
        message.number(self.rank).whole()
    }

    pub(super) fn read(message: &mut Incoming) -> io::Result<Self> {
        let mut narrow = || u16::try_from(message.number()?).map_err(|_| malformed());
        let channel = narrow()?;
        let socket = narrow()?;
        Ok(Call { channel, socket, rank: message.number()? })
    }
}

/// Connections of callers, until somebody wants them.
struct Unclaimed<C> {
    connections: Mutex<HashMap<Call, C>>,
    more: Condvar,
    /// Since when this process has had no descriptors for callers.
    short: Mutex<Option<Instant>>,
}

impl<C: Read + Write> Unclaimed<C> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Call, C>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, caller: Authenticated<C>) -> io::Result<()> {
        let Authenticated { mut connection, mut message, .. } = caller;
        let call = Call::read(&mut message)?;
        if call.socket == Call::NONE {
            return connection.write_all(&WELCOME);
        }
        // A caller that is welcome may leave at once; whoever knows that it has left finds its connection here.
        let mut connections = self.lock();
        connection.write_all(&WELCOME)?;
        connections.insert(call, connection);
        self.more.notify_all();
        Ok(())
    }

    /// Fails if descriptors have been missing for longer than strangers can be the reason, who give way to callers.
    fn check_descriptors(&self) -> io::Result<()> {
        let since = *self.short.lock().unwrap_or_else(PoisonError::into_inner);
        let short = since.is_some_and(|since| since.elapsed() > SHORTAGE);
        if short { Err(Errno::MFILE.into()) } else { Ok(()) }
    }

    /// The connection of this caller, if it comes before `at_most` is over.
    fn take(&self, call: Call, at_most: Duration) -> Option<C> {
        let absent = |connections: &mut HashMap<Call, C>| !connections.contains_key(&call);
        runtime::wait_while(&self.more, &self.connections, at_most, absent).remove(&call)
    }
}

/// A listener for data connections, and the thread that answers there.
pub(crate) struct DataListener<C> {
    unclaimed: Arc<Unclaimed<C>>,
    bell: Arc<Doorbell>,
    closed: Arc<AtomicBool>,
    thread: Option<Thread>,
}

impl<C: Read + Write + Send + 'static> DataListener<C> {
    /// Lets in who knows the job's key.
    pub(crate) fn open(
        listener: impl Accept<Connection = C> + Send + 'static,
        peers: &PeerTable,
    ) -> Result<Self> {
        let unclaimed =
            Unclaimed { connections: Mutex::default(), more: Condvar::new(), short: Mutex::default() };
        let unclaimed = Arc::new(unclaimed);
        let bell = Arc::new(Doorbell::new()?);
        let closed = Arc::new(AtomicBool::new(false));
        let mut acceptor = Acceptor::new(listener, peers.key.bytes(), peers.infos.len())?;
        let their_unclaimed = Arc::clone(&unclaimed);
        let their_bell = Arc::clone(&bell);
        let their_closed = Arc::clone(&closed);
        let attend = move || {
            while !their_closed.load(Ordering::Acquire) {
                *their_unclaimed.short.lock().unwrap_or_else(PoisonError::into_inner) =
                    acceptor.short_since();
                for caller in acceptor.wait(None, &[their_bell.as_fd()]) {
                    if let Err(error) = their_unclaimed.put(caller) {
                        tracing::warn!("turned a data connection away: {error}");
                    }
                }
            }
        };
        let thread = runtime::spawn("hexagram-accept", attend)?;
        Ok(DataListener { unclaimed, bell, closed, thread: Some(thread) })
    }

    /// Waits for the connection of one caller.
    pub(crate) fn await_call(&self, call: Call, limit: Duration, health: &Health) -> Result<C> {
        let opening = Opening { peer: call.rank, channel: call.channel, limit, health };
        opening.poll_until(|at_most| {
            let found = self.unclaimed.take(call, at_most);
            if found.is_none() {
                self.unclaimed.check_descriptors()?;
            }
            Ok(found)
        })
    }
}

impl<C> Drop for DataListener<C> {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Proves to the door at the other end that this rank belongs to the job, before it says why it calls.
fn authenticated<C: Read + Write>(mut connection: C, key: &Key) -> io::Result<C> {
    match authenticate(&mut connection, key.bytes(), &[])? {
        Build::MINE => Ok(connection),
        build => Err(io::Error::new(io::ErrorKind::Unsupported, format!("{build} answers there"))),
    }
}

fn read_welcome(connection: &mut impl Read) -> io::Result<()> {
    let mut answer = [0; WELCOME.len()];
    connection.read_exact(&mut answer)?;
    if answer == WELCOME { Ok(()) } else { Err(malformed()) }
}

/// What a thread that opens a channel waits for.
pub(crate) struct Opening<'a> {
    pub(crate) peer: usize,
    pub(crate) channel: u16,
    pub(crate) limit: Duration,
    pub(crate) health: &'a Health,
}

impl Opening<'_> {
    /// Calls until the peer's door has answered: `connect` makes a connection whose reads and writes end after
    /// [`STEP_TIMEOUT`], `say` writes the call there, with whatever rides on it.
    pub(crate) fn connect<C: Read + Write>(
        &self,
        key: &Key,
        call: Call,
        mut connect: impl FnMut() -> io::Result<C>,
        mut say: impl FnMut(&mut C, &[u8]) -> io::Result<()>,
    ) -> Result<C> {
        let words = call.to_bytes();
        let mut dial = || -> io::Result<C> {
            let mut connection = authenticated(connect()?, key)?;
            say(&mut connection, &words)?;
            Ok(connection)
        };
        let mut called = None;
        let mut attempt = || {
            let mut connection = called.take().map_or_else(&mut dial, Ok)?;
            match read_welcome(&mut connection) {
                Ok(()) => Ok(connection),
                Err(error) => {
                    // A call may have been heard that is only answered late.
                    called = Some(connection).filter(|_| is_late(&error));
                    Err(error)
                }
            }
        };
        self.poll_until(|_| match attempt() {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if is_late(&error) => Ok(None),
            // Strangers at the door may have pushed this call unclaimed.
            Err(error) if is_cut_off(&error) => {
                runtime::sleep(TICK);
                Ok(None)
            }
            Err(error) => Err(error),
        })
    }

    /// Asks whether the peer's door lets rank `rank` in. `connect` is as in [`Opening::connect`].
    pub(crate) fn probe<C: Read + Write>(
        &self,
        key: &Key,
        rank: usize,
        mut connect: impl FnMut() -> io::Result<C>,
    ) -> io::Result<()> {
        let words = Call { channel: self.channel, socket: Call::NONE, rank }.to_bytes();
        let mut attempt = || -> io::Result<()> {
            let mut connection = authenticated(connect()?, key)?;
            connection.write_all(&words)?;
            read_welcome(&mut connection)
        };
        let deadline = deadline(self.limit);
        let mut refusals = 0;
        loop {
            let hopeless = self.health.verdict().is_some() || self.health.has_left(self.peer);
            match attempt() {
                Err(_) if !hopeless && runtime::now() > deadline => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) if !hopeless && is_late(&error) => {}
                Err(error) if !hopeless && is_cut_off(&error) && refusals < MAX_REFUSALS => {
                    refusals += 1;
                    runtime::sleep(TICK);
                }
                outcome => return outcome,
            }
        }
    }

    /// Looks again and again, whenever `source` may be ready.
    pub(crate) fn until<T>(
        &self,
        source: &impl AsFd,
        mut look: impl FnMut() -> io::Result<Option<T>>,
    ) -> Result<T> {
        self.poll_until(|at_most| {
            let found = look()?;
            if found.is_none() {
                let _ = runtime::poll(&mut [PollFd::new(source, PollFlags::IN)], Some(at_most));
            }
            Ok(found)
        })
    }

    /// What to do about a connection that cannot be had.
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
                "name an interface that the other hosts reach in HEXAGRAM_INTERFACE, or open its ports in the firewall"
                    .to_owned()
            }
            _ => "see why that process does not answer: it may have ended, or be on another host than it says \
                  (HEXAGRAM_HOST, HEXAGRAM_INTERFACE)"
                .to_owned(),
        }
    }

    /// Looks again and again, each time for as long as it is told, until something is found, the peer is known not to
    /// come, or the limit is over.
    fn poll_until<T>(&self, mut look: impl FnMut(Duration) -> io::Result<Option<T>>) -> Result<T> {
        let Opening { peer, channel, limit, health } = self;
        let deadline = deadline(*limit);
        let who = &health.peers()[*peer];
        let refused = |what: String| Err(Error::setup(what, "all ranks must open the same channels"));
        loop {
            // Asked first: whoever left has called before.
            let left = health.has_left(*peer);
            let found = look(TICK).map_err(|cause| {
                let remedy = self.remedy(&cause);
                Error::system(format!("open channel {channel} with {who}"), cause, remedy)
            })?;
            match found {
                Some(found) => return Ok(found),
                None if left => return refused(format!("{who} finished without opening channel {channel}")),
                None if health.verdict().is_some() => {
                    return refused(format!("channel {channel} was given up"));
                }
                None if runtime::now() > deadline => {
                    return refused(format!("{who} did not open channel {channel} within {limit:?}"));
                }
                None => {}
            }
        }
    }
}
