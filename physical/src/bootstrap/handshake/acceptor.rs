//! Accepts connections, and holds them until the peer has completed the handshake, at the rendezvous and at every
//! data port.
//!
//! Any process can connect to a port. A pending connection costs one descriptor and a hundred bytes for at most
//! [`HANDSHAKE_TIMEOUT`]. If there are more than [`MAX_PENDING`], or descriptors run out, the acceptor evicts the
//! oldest connection of the handshake step with the most connections. Unauthenticated connections accumulate at some
//! step, whereas a rank passes all steps immediately. Therefore neither silent connections nor those that stop after
//! their greeting keep a rank out. Connections that have greeted count half, since many ranks may be there at the
//! same time. A connection that has proved the secret is never evicted.
//!
//! The acceptor never blocks on one connection, and the cost of serving active ones does not grow with the number of
//! silent ones.

use super::pending::{Authenticated, HandshakeProgress, PendingConnection};
use super::poller::Poller;
use super::rejections::Rejections;
use crate::bootstrap::exhausted;
use crate::bootstrap::sockets::listeners::Accept;
use crate::error::Result;
use crate::runtime::{self, Instant, PollFd, PollFlags};
use crate::system::limits;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Longest time from a connection to its proof, before it is rejected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of pending connections, if descriptors suffice.
const MAX_PENDING: usize = 1024;
/// Maximum number of pending connections if the limit of open files is low.
const MIN_PENDING: usize = 16;
/// Maximum number of connections accepted in a row before pending ones are served.
const BATCH: usize = 256;
/// Pause before accepting again after descriptors ran out. No event signals that some are free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Index of the connections that have greeted, in [`Acceptor::unproved`].
const GREETED: usize = HandshakeProgress::Greeted as usize;
/// Poller number of the listener. Connections count from 0.
const LISTENER: u64 = u64::MAX;

/// Listener, and the connections to it that have not completed the handshake.
pub(crate) struct Acceptor<A: Accept> {
    /// Source of connections.
    listener: A,
    /// Key that every peer must prove.
    key: Vec<u8>,
    /// Readiness of the listener and of all pending connections.
    poller: Poller,
    /// Pending connections by number, in the order in which they were accepted.
    pending: HashMap<u64, PendingConnection<A::Connection>>,
    /// Numbers of the connections without a proof, one set for each [`HandshakeProgress`]. The lowest number is the oldest.
    unproved: [BTreeSet<u64>; HandshakeProgress::Proved as usize],
    /// Maximum number of connections without a proof.
    capacity: usize,
    /// Number of connections accepted so far.
    accepted: u64,
    /// Log of rejected connections.
    rejections: Rejections,
    /// Instant at which to accept again, after descriptors ran out.
    resume: Option<Instant>,
    /// Instant from which new connections have lacked descriptors.
    short: Option<Instant>,
}

impl<A: Accept> Acceptor<A> {
    /// Creates an acceptor of connections whose peers prove `key`. Each of the `ranks` of the job is expected to keep
    /// at least one descriptor.
    ///
    /// # Errors
    /// [`Error::System`] if the system provides no epoll.
    pub(crate) fn new(listener: A, key: &[u8], ranks: usize) -> Result<Self> {
        let watch = || -> io::Result<Poller> {
            let poller = Poller::new()?;
            poller.watch(&listener, LISTENER)?;
            Ok(poller)
        };
        let poller = watch();
        let poller = poller.map_err(|cause| limits::no_descriptor("watch for connections", cause))?;
        Ok(Acceptor {
            listener,
            key: key.to_vec(),
            poller,
            pending: HashMap::new(),
            unproved: Default::default(),
            capacity: limits::spare_open_files(ranks).clamp(MIN_PENDING, MAX_PENDING),
            accepted: 0,
            rejections: Rejections::default(),
            resume: None,
            short: None,
        })
    }

    /// Waits until a connection arrives or sends, one of `others` can be read, or `at_most` has passed. Returns the
    /// connections that have completed the handshake.
    pub(crate) fn wait(
        &mut self,
        at_most: Option<Duration>,
        others: &[BorrowedFd<'_>],
    ) -> Vec<Authenticated<A::Connection>> {
        self.sleep(at_most, others);
        if self.resume.is_some_and(|resume| resume <= runtime::now()) {
            self.resume = None;
            // It was watched before, so the system has memory for it.
            let _ = self.poller.watch(&self.listener, LISTENER);
        }
        let mut proved = Vec::new();
        let mut ready = self.poller.ready();
        // Pending connections first, as they may free capacity.
        ready.sort_unstable();
        for number in ready {
            if number == LISTENER {
                self.accept_all();
            } else if let Some(mut connection) = self.take(number) {
                connection.has_sent = true;
                proved.extend(self.serve(number, connection));
            }
        }
        self.expire();
        proved
    }

    /// Waits until a descriptor is ready, but not beyond the next expiry or the end of [`ACCEPT_PAUSE`].
    fn sleep(&self, at_most: Option<Duration>, others: &[BorrowedFd<'_>]) {
        let mut sources = vec![PollFd::new(&self.poller, PollFlags::IN)];
        sources.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        let expiry = self.oldest().map(|(_, since)| since + HANDSHAKE_TIMEOUT);
        let until = [expiry, self.resume].into_iter().flatten().min();
        let until = until.map(|until| until.saturating_duration_since(runtime::now()));
        // A millisecond late rather than early, which would turn the last millisecond into a busy loop.
        let until = until.map(|until| until + Duration::from_millis(1));
        let timeout = [until, at_most].into_iter().flatten().min();
        let _ = runtime::poll(&mut sources, timeout);
    }

    /// Accepts up to [`BATCH`] waiting connections.
    fn accept_all(&mut self) {
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok(connection) => {
                    let number = self.accepted;
                    self.accepted += 1;
                    match self.poller.watch(&connection, number) {
                        Ok(()) => self.put(number, PendingConnection::new(connection)),
                        Err(error) => self.rejections.record(&error),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if exhausted(&error) => {
                    self.evict();
                    self.reject(&error);
                    self.poller.forget(&self.listener);
                    self.resume = Some(runtime::now() + ACCEPT_PAUSE);
                    return;
                }
                Err(error) => self.rejections.record(&error),
            }
        }
    }

    /// Reads the received bytes of a pending connection. Returns it once its first message is complete.
    fn serve(
        &mut self,
        number: u64,
        mut connection: PendingConnection<A::Connection>,
    ) -> Option<Authenticated<A::Connection>> {
        match connection.receive(&self.key) {
            Ok(Some(build)) => {
                self.short = None;
                self.poller.forget(&connection.connection);
                return Some(connection.into_authenticated(build));
            }
            Ok(None) => self.put(number, connection),
            Err(error) => self.reject(&error),
        }
        None
    }

    /// Records a connection that failed, and the shortage if this process itself lacks descriptors.
    fn reject(&mut self, error: &io::Error) {
        if !exhausted(error) {
            return self.rejections.record(error);
        }
        self.short.get_or_insert_with(runtime::now);
        let what = format!("{error}; raise the limit (ulimit -n), or close files of this process");
        self.rejections.record(&io::Error::new(error.kind(), what));
    }

    /// Adds a pending connection, and evicts one if there are too many.
    fn put(&mut self, number: u64, connection: PendingConnection<A::Connection>) {
        if let Some(equals) = self.unproved.get_mut(connection.progress() as usize) {
            equals.insert(number);
        }
        self.pending.insert(number, connection);
        if self.unproved.iter().map(BTreeSet::len).sum::<usize>() > self.capacity {
            self.evict();
        }
    }

    /// Removes a pending connection, and returns it.
    fn take(&mut self, number: u64) -> Option<PendingConnection<A::Connection>> {
        let connection = self.pending.remove(&number)?;
        if let Some(equals) = self.unproved.get_mut(connection.progress() as usize) {
            equals.remove(&number);
        }
        Some(connection)
    }

    /// Evicts the oldest connection of the step with most connections. Of several such steps the earliest loses one.
    fn evict(&mut self) {
        let weight = |(standing, equals): &(usize, &mut BTreeSet<u64>)| match *standing {
            GREETED => equals.len(),
            _ => 2 * equals.len(),
        };
        let most = self.unproved.iter_mut().enumerate().rev().max_by_key(weight);
        if let Some(number) = most.and_then(|(_, equals)| equals.pop_first()) {
            self.pending.remove(&number);
            self.rejections.record(&io::Error::other("too many pending connections"));
        }
    }

    /// Rejects the connections whose [`HANDSHAKE_TIMEOUT`] has passed.
    fn expire(&mut self) {
        while let Some((number, _)) = self.oldest().filter(|(_, since)| since.elapsed() > HANDSHAKE_TIMEOUT) {
            self.take(number);
            self.rejections.record(&io::ErrorKind::TimedOut.into());
        }
    }

    /// Returns the oldest connection without a proof, and the instant of its acceptance.
    fn oldest(&self) -> Option<(u64, Instant)> {
        let oldest = *self.unproved.iter().filter_map(BTreeSet::first).min()?;
        Some((oldest, self.pending.get(&oldest)?.accepted_at))
    }

    /// Returns the listener.
    pub(crate) fn listener(&self) -> &A {
        &self.listener
    }

    /// Returns the instant since which new connections have been rejected for lack of descriptors. `None` once one
    /// has completed the handshake.
    pub(crate) fn short_since(&self) -> Option<Instant> {
        self.short
    }

    /// Returns the last rejection of a peer that spoke the protocol but proved a different secret.
    pub(crate) fn denied(&self) -> Option<&str> {
        self.rejections.denied.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::MessageWriter;
    use super::super::{GREETING, MAGIC, authenticate};
    use super::*;
    use std::io::Write;
    use std::os::unix::net::{UnixListener, UnixStream};

    const KEY: &[u8] = b"key";

    impl Accept for UnixListener {
        type Connection = UnixStream;

        fn accept(&self) -> io::Result<UnixStream> {
            let (stream, _) = UnixListener::accept(self)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        }
    }

    /// Creates an acceptor with room for four connections, and a function that connects to it.
    fn small() -> (Acceptor<UnixListener>, impl Fn() -> UnixStream + Clone + Send) {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("hexagram-test-{:032x}", u128::from_le_bytes(crate::bootstrap::random().unwrap()));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut acceptor = Acceptor::new(listener, KEY, 1).unwrap();
        acceptor.capacity = 4;
        (acceptor, move || UnixStream::connect_addr(&address).unwrap())
    }

    fn attend(acceptor: &mut Acceptor<UnixListener>) -> Vec<Authenticated<UnixStream>> {
        acceptor.wait(Some(Duration::ZERO), &[])
    }

    /// Returns the numbers of the pending connections. Reading the end of a connection would prove less: it arrives
    /// late while a process that is just being started holds a copy of the descriptor.
    fn present(acceptor: &Acceptor<UnixListener>) -> Vec<u64> {
        let mut present: Vec<u64> = acceptor.pending.keys().copied().collect();
        present.sort_unstable();
        present
    }

    #[test]
    fn the_least_advanced_connection_is_evicted_first() {
        let (mut acceptor, call) = small();
        let mut pending: Vec<UnixStream> = (0..4).map(|_| call()).collect();
        attend(&mut acceptor);
        // The two oldest begin to send.
        for connection in &mut pending[..2] {
            connection.write_all(b"hexa").unwrap();
        }
        attend(&mut acceptor);
        pending.extend((0..3).map(|_| call()));
        attend(&mut acceptor);
        assert_eq!(present(&acceptor), [0, 1, 5, 6]);
    }

    #[test]
    fn greetings_without_a_proof_keep_nobody_out() {
        let (mut acceptor, call) = small();
        acceptor.capacity = 12;
        let greet = |_| {
            let mut connection = call();
            connection.write_all(&[MAGIC.as_slice(), &[0; GREETING - MAGIC.len()]].concat()).unwrap();
            connection
        };
        let _greeted: Vec<UnixStream> = (0..8).map(greet).collect();
        attend(&mut acceptor);
        attend(&mut acceptor);
        let speak = |_| {
            let mut connection = call();
            connection.write_all(b"hexa").unwrap();
            connection
        };
        let _speaking: Vec<UnixStream> = (0..4).map(speak).collect();
        attend(&mut acceptor);
        attend(&mut acceptor);
        assert_eq!(acceptor.unproved.each_ref().map(BTreeSet::len), [0, 4, 8]);
        let caller = std::thread::spawn({
            let call = call.clone();
            move || authenticate(&mut call(), KEY, &MessageWriter::default().number(5).whole())
        });
        let mut proved = Vec::new();
        while !caller.is_finished() {
            proved.extend(acceptor.wait(Some(Duration::from_millis(10)), &[]));
        }
        caller.join().unwrap().unwrap();
        proved.extend(attend(&mut acceptor));
        assert_eq!(proved[0].message.number().unwrap(), 5);
    }

    #[test]
    fn a_proved_connection_is_never_evicted() {
        let (mut acceptor, call) = small();
        let caller = std::thread::spawn({
            let call = call.clone();
            move || {
                let mut caller = call();
                // The length of a message, and nothing of it yet.
                authenticate(&mut caller, KEY, &8u32.to_le_bytes()).unwrap();
                caller
            }
        });
        while !caller.is_finished() {
            assert!(acceptor.wait(Some(Duration::from_millis(10)), &[]).is_empty());
        }
        let mut caller = caller.join().unwrap();
        attend(&mut acceptor);
        let _silent: Vec<UnixStream> = (0..20).map(|_| call()).collect();
        attend(&mut acceptor);
        assert_eq!(present(&acceptor), [0, 17, 18, 19, 20]);
        caller.write_all(&MessageWriter::default().number(5).number(6).whole()[4..]).unwrap();
        let mut proved = attend(&mut acceptor);
        assert_eq!(proved.len(), 1);
        assert_eq!(proved[0].message.number().unwrap(), 5);
    }
}
