//! Accepts the data connections of a transport: every pair of ranks makes one or more for each channel that both
//! open.
//!
//! The higher rank connects to the listener of the lower one, performs the handshake, and sends its call. A thread at each
//! listener accepts connections at any time, so that no rank waits for a computing rank, and keeps them until this rank opens
//! the channel. It sleeps while no connection arrives. The connecting side is in `dial`.
//!
//! ```text
//! both              handshake, as in `handshake`
//! caller → callee   call = length:u32 channel:u32 socket:u32 rank:u32
//! callee → caller   WELCOME
//! ```
//!
//! A call for the socket [`DialRequest::NONE`] only tests whether a connection is possible. It ends with the welcome.

use super::dial::{Dial, DialRequest, TICK, WELCOME};
use super::listeners::Accept;
use crate::bootstrap::handshake::acceptor::Acceptor;
use crate::bootstrap::handshake::pending::Authenticated;
use crate::bootstrap::meeting::peer_info::PeerTable;
use crate::control::health::Health;
use crate::error::Result;
use crate::runtime::{self, Instant, Thread};
use crate::transport::Bell;
use crate::waiting::doorbell::Doorbell;
use rustix::io::Errno;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest time without descriptors for new connections before this process reports it as its own failure.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Connections that were accepted, until this rank opens their channel.
struct Unclaimed<C> {
    /// The connections by their calls.
    connections: Mutex<HashMap<DialRequest, C>>,
    /// Signal for a new connection.
    more: Condvar,
    /// Instant since which this process has had no descriptors for new connections.
    short: Mutex<Option<Instant>>,
}

impl<C: Read + Write> Unclaimed<C> {
    /// Locks the connections.
    fn lock(&self) -> MutexGuard<'_, HashMap<DialRequest, C>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Confirms a connection and keeps it.
    fn put(&self, caller: Authenticated<C>) -> io::Result<()> {
        let Authenticated { mut connection, mut message, .. } = caller;
        let call = DialRequest::read(&mut message)?;
        if call.socket == DialRequest::NONE {
            return connection.write_all(&WELCOME);
        }
        // A caller may leave as soon as it has the welcome. After that, its connection must be found here.
        let mut connections = self.lock();
        connection.write_all(&WELCOME)?;
        connections.insert(call, connection);
        self.more.notify_all();
        Ok(())
    }

    /// Fails if descriptors have been missing for [`SHORTAGE`]. A shorter time may be due to unauthenticated
    /// connections, which are evicted.
    fn check_descriptors(&self) -> io::Result<()> {
        let since = *self.short.lock().unwrap_or_else(PoisonError::into_inner);
        let short = since.is_some_and(|since| since.elapsed() > SHORTAGE);
        if short { Err(Errno::MFILE.into()) } else { Ok(()) }
    }

    /// Waits up to `at_most` for the connection of `call`, and takes it.
    fn take(&self, call: DialRequest, at_most: Duration) -> Option<C> {
        let absent = |connections: &mut HashMap<DialRequest, C>| !connections.contains_key(&call);
        runtime::wait_while(&self.more, &self.connections, at_most, absent).remove(&call)
    }
}

/// Listener for data connections, and the thread that accepts them.
pub(crate) struct DataListener<C> {
    /// Connections that this rank has not taken yet.
    unclaimed: Arc<Unclaimed<C>>,
    /// Bell that wakes the thread.
    bell: Arc<Doorbell>,
    /// Set to end the thread.
    closed: Arc<AtomicBool>,
    /// The thread, until it is joined.
    thread: Option<Thread>,
}

impl<C: Read + Write + Send + 'static> DataListener<C> {
    /// Starts to accept connections from the ranks of `peers`, which prove their key.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the system provides no descriptor or no thread.
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
                        tracing::warn!("rejected a data connection: {error}");
                    }
                }
            }
        };
        let thread = runtime::spawn("hexagram-accept", attend)?;
        Ok(DataListener { unclaimed, bell, closed, thread: Some(thread) })
    }

    /// Waits for the connection of `call`, and takes it.
    ///
    /// # Errors
    /// [`Error::Setup`](crate::Error::Setup) if the rank has left or failed, or does not connect within `limit`.
    pub(crate) fn await_call(&self, call: DialRequest, limit: Duration, health: &Health) -> Result<C> {
        let dial = Dial { peer: call.rank, channel: call.channel, limit, health };
        dial.poll_until(TICK, |at_most, _| {
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
