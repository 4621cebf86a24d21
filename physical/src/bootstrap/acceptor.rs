//! Where callers wait until they have proved who they are: in front of the rendezvous, and of every data port.
//!
//! Anyone can connect to a port. A connection costs one descriptor and a hundred bytes for at most [`HANDSHAKE_TIMEOUT`]; when
//! there are too many of them, or descriptors run out, one gives way. Strangers pile up at some step of the handshake,
//! whichever it is; a rank takes all of them at once. So the one gives way who has waited longest at the step where there
//! are most: silent ones never keep a rank out, nor do those who greet and say no more. Those who have greeted count half,
//! as many ranks may do so together, and who has proved to belong to the job never gives way. Nobody is waited for: those
//! who speak are served whenever they do, at a cost that does not grow with the number of those who do not.

use super::exhausted;
use super::pending::{Authenticated, PendingConnection, Progress};
use super::poller::Poller;
use super::rejections::Rejections;
use crate::error::{Error, Result};
use crate::limits;
use crate::runtime::{self, Instant, PollFd, PollFlags};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// How long a caller may take from its connection to the proof.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Callers who have not yet proved who they are, where there are descriptors enough.
const MAX_PENDING: usize = 1024;
/// The same where there are not.
const MIN_PENDING: usize = 16;
/// Callers let in before those inside have their turn.
const BATCH: usize = 256;
/// Before accepting again when the process has no descriptors left: nothing announces that some are free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Where those are who have greeted.
const GREETED: usize = Progress::Greeted as usize;
/// The listener's number; callers count from 0.
const LISTENER: u64 = u64::MAX;

/// A listener. Nothing here blocks, nor do its connections.
pub(crate) trait Accept: AsFd {
    type Connection: Read + Write + AsFd;

    /// The next caller, or `WouldBlock`.
    fn accept(&self) -> io::Result<Self::Connection>;
}

pub(super) struct Acceptor<A: Accept> {
    listener: A,
    key: Vec<u8>,
    poller: Poller,
    /// By number, in the order in which they came.
    pending: HashMap<u64, PendingConnection<A::Connection>>,
    /// Those who have not proved who they are, by their standing; the first of each have waited longest.
    unproved: [BTreeSet<u64>; Progress::Proved as usize],
    /// How many of them there may be.
    capacity: usize,
    /// How many have ever accepted.
    accepted: u64,
    rejections: Rejections,
    /// When to accept again, after descriptors ran out.
    resume: Option<Instant>,
    /// Since when descriptors have been missing for those who call.
    short: Option<Instant>,
}

impl<A: Accept> Acceptor<A> {
    /// Lets callers in who know `key`; so many `ranks` will keep a descriptor or more each.
    ///
    /// # Errors
    /// [`Error::System`] if the system gives no epoll.
    pub(super) fn new(listener: A, key: &[u8], ranks: usize) -> Result<Self> {
        let watch = || -> io::Result<Poller> {
            let poller = Poller::new()?;
            poller.watch(&listener, LISTENER)?;
            Ok(poller)
        };
        let poller = watch();
        let poller =
            poller.map_err(|cause| Error::system("watch for callers", cause, limits::a_file_more()))?;
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

    /// Waits until somebody calls or speaks, one of `others` can be read or the time is over; returns those who have
    /// proved themselves, if any.
    pub(super) fn wait(
        &mut self,
        at_most: Option<Duration>,
        others: &[BorrowedFd<'_>],
    ) -> Vec<Authenticated<A::Connection>> {
        self.sleep(at_most, others);
        if self.resume.is_some_and(|resume| resume <= runtime::now()) {
            self.resume = None;
            // Watched before, so there is memory for it.
            let _ = self.poller.watch(&self.listener, LISTENER);
        }
        let mut proved = Vec::new();
        let mut ready = self.poller.ready();
        // Those inside first: they may make capacity.
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

    fn sleep(&self, at_most: Option<Duration>, others: &[BorrowedFd<'_>]) {
        let mut sources = vec![PollFd::new(&self.poller, PollFlags::IN)];
        sources.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        let expiry = self.oldest().map(|(_, since)| since + HANDSHAKE_TIMEOUT);
        let until = [expiry, self.resume].into_iter().flatten().min();
        let until = until.map(|until| until.saturating_duration_since(runtime::now()));
        // A millisecond late rather than early, which would turn the last one into a busy loop.
        let until = until.map(|until| until + Duration::from_millis(1));
        let timeout = [until, at_most].into_iter().flatten().min();
        let _ = runtime::poll(&mut sources, timeout);
    }

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

    /// Hears a caller; returns it once it has said everything.
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

    /// Complains about a caller that has failed, or whom this process has failed.
    fn reject(&mut self, error: &io::Error) {
        if !exhausted(error) {
            return self.rejections.record(error);
        }
        self.short.get_or_insert_with(runtime::now);
        let what = format!("{error}; see ulimit -n, or what else this process has open");
        self.rejections.record(&io::Error::new(error.kind(), what));
    }

    fn put(&mut self, number: u64, connection: PendingConnection<A::Connection>) {
        if let Some(equals) = self.unproved.get_mut(connection.progress() as usize) {
            equals.insert(number);
        }
        self.pending.insert(number, connection);
        if self.unproved.iter().map(BTreeSet::len).sum::<usize>() > self.capacity {
            self.evict();
        }
    }

    fn take(&mut self, number: u64) -> Option<PendingConnection<A::Connection>> {
        let connection = self.pending.remove(&number)?;
        if let Some(equals) = self.unproved.get_mut(connection.progress() as usize) {
            equals.remove(&number);
        }
        Some(connection)
    }

    /// Sends away the one who has waited longest where there are most; of several such places, where they have come least
    /// far.
    fn evict(&mut self) {
        let weight = |(standing, equals): &(usize, &mut BTreeSet<u64>)| match *standing {
            GREETED => equals.len(),
            _ => 2 * equals.len(),
        };
        let most = self.unproved.iter_mut().enumerate().rev().max_by_key(weight);
        if let Some(number) = most.and_then(|(_, equals)| equals.pop_first()) {
            self.pending.remove(&number);
            self.rejections.record(&io::Error::other("too many connections at once"));
        }
    }

    /// Sends away those whose time is over.
    fn expire(&mut self) {
        while let Some((number, _)) = self.oldest().filter(|(_, since)| since.elapsed() > HANDSHAKE_TIMEOUT) {
            self.take(number);
            self.rejections.record(&io::ErrorKind::TimedOut.into());
        }
    }

    /// Who has waited longest of those who have proved nothing, and since when.
    fn oldest(&self) -> Option<(u64, Instant)> {
        let oldest = *self.unproved.iter().filter_map(BTreeSet::first).min()?;
        Some((oldest, self.pending.get(&oldest)?.accepted_at))
    }

    pub(super) fn listener(&self) -> &A {
        &self.listener
    }

    /// Since when callers have been turned away because there are no descriptors for them, if nobody has come in since.
    pub(super) fn short_since(&self) -> Option<Instant> {
        self.short
    }

    /// How the last caller failed who spoke hexagram's language but knew another secret.
    pub(super) fn denied(&self) -> Option<&str> {
        self.rejections.denied.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{GREETING, MAGIC, authenticate};
    use super::super::message::Outgoing;
    use super::*;
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

    /// A acceptor with little capacity, and a way to call there.
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

    /// The callers who are still there, by the order in which they came. The acceptor itself says so: the end of a connection
    /// arrives late where a process that was just being started has a copy of its descriptor.
    fn present(acceptor: &Acceptor<UnixListener>) -> Vec<u64> {
        let mut present: Vec<u64> = acceptor.pending.keys().copied().collect();
        present.sort_unstable();
        present
    }

    #[test]
    fn those_give_way_first_who_have_come_least_far() {
        let (mut acceptor, call) = small();
        let mut pending: Vec<UnixStream> = (0..4).map(|_| call()).collect();
        attend(&mut acceptor);
        // The two that have waited longest begin to speak.
        for connection in &mut pending[..2] {
            connection.write_all(b"hexa").unwrap();
        }
        attend(&mut acceptor);
        pending.extend((0..3).map(|_| call()));
        attend(&mut acceptor);
        assert_eq!(present(&acceptor), [0, 1, 5, 6]);
    }

    #[test]
    fn those_who_greet_and_say_no_more_keep_nobody_out() {
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
            move || authenticate(&mut call(), KEY, &Outgoing::default().number(5).whole())
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
    fn who_has_proved_itself_never_gives_way() {
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
        caller.write_all(&Outgoing::default().number(5).number(6).whole()[4..]).unwrap();
        let mut proved = attend(&mut acceptor);
        assert_eq!(proved.len(), 1);
        assert_eq!(proved[0].message.number().unwrap(), 5);
    }
}
