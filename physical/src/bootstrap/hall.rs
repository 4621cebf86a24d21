//! Where callers wait until they have proved who they are: in front of the meeting, and of every data port.
//!
//! Anyone can connect to a port. A stranger costs one descriptor and a hundred bytes for at most [`PATIENCE`]; when
//! there are too many of them, or descriptors run out, one gives way. Strangers pile up at some step of the handshake,
//! whichever it is; a rank takes all of them at once. So the one gives way who has waited longest at the step where there
//! are most: silent ones never keep a rank out, nor do those who greet and say no more. Those who have greeted count half,
//! as many ranks may do so together, and who has proved to belong to the job never gives way. Nobody is waited for: those
//! who speak are served whenever they do, at a cost that does not grow with the number of those who do not.

use super::complaints::Complaints;
use super::exhausted;
use super::poller::Poller;
use super::stranger::{Caller, Standing, Stranger};
use crate::doorbell::timespec;
use crate::error::{Error, Result};
use crate::limits;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How long a caller may take from its connection to the proof.
const PATIENCE: Duration = Duration::from_secs(5);
/// Callers who have not yet proved who they are, where there are descriptors enough.
const CROWD: usize = 1024;
/// The same where there are not.
const FEW: usize = 16;
/// Callers let in before those inside have their turn.
const BATCH: usize = 256;
/// Before accepting again when the process has no descriptors left: nothing announces that some are free.
const PAUSE: Duration = Duration::from_millis(50);
/// Where those are who have greeted.
const GREETED: usize = Standing::Greeted as usize;
/// The listener's number; callers count from 0.
const LISTENER: u64 = u64::MAX;

/// A listener. Nothing here blocks, nor do its connections.
pub(crate) trait Accept: AsFd {
    type Connection: Read + Write + AsFd;

    /// The next caller, or `WouldBlock`.
    fn accept(&self) -> io::Result<Self::Connection>;
}

pub(super) struct Hall<A: Accept> {
    listener: A,
    key: Vec<u8>,
    poller: Poller,
    /// By number, in the order in which they came.
    strangers: HashMap<u64, Stranger<A::Connection>>,
    /// Those who have not proved who they are, by their standing; the first of each have waited longest.
    unproved: [BTreeSet<u64>; Standing::Proved as usize],
    /// How many of them there may be.
    room: usize,
    /// How many have ever called.
    called: u64,
    complaints: Complaints,
    /// When to accept again, after descriptors ran out.
    resume: Option<Instant>,
    /// Since when descriptors have been missing for those who call.
    short: Option<Instant>,
}

impl<A: Accept> Hall<A> {
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
        Ok(Hall {
            listener,
            key: key.to_vec(),
            poller,
            strangers: HashMap::new(),
            unproved: Default::default(),
            room: limits::spare_open_files(ranks).clamp(FEW, CROWD),
            called: 0,
            complaints: Complaints::default(),
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
    ) -> Vec<Caller<A::Connection>> {
        self.sleep(at_most, others);
        if self.resume.is_some_and(|resume| resume <= Instant::now()) {
            self.resume = None;
            // Watched before, so there is memory for it.
            let _ = self.poller.watch(&self.listener, LISTENER);
        }
        let mut proved = Vec::new();
        let mut ready = self.poller.ready();
        // Those inside first: they may make room.
        ready.sort_unstable();
        for number in ready {
            if number == LISTENER {
                self.let_in();
            } else if let Some(mut stranger) = self.take(number) {
                stranger.has_spoken = true;
                proved.extend(self.serve(number, stranger));
            }
        }
        self.expire();
        proved
    }

    fn sleep(&self, at_most: Option<Duration>, others: &[BorrowedFd<'_>]) {
        let mut sources = vec![PollFd::new(&self.poller, PollFlags::IN)];
        sources.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        let expiry = self.oldest().map(|(_, since)| since + PATIENCE);
        let until = [expiry, self.resume].into_iter().flatten().min();
        let until = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A millisecond late rather than early, which would turn the last one into a busy loop.
        let until = until.map(|until| until + Duration::from_millis(1));
        let timeout = [until, at_most].into_iter().flatten().min().map(timespec);
        let _ = poll(&mut sources, timeout.as_ref());
    }

    fn let_in(&mut self) {
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok(connection) => {
                    let number = self.called;
                    self.called += 1;
                    match self.poller.watch(&connection, number) {
                        Ok(()) => self.put(number, Stranger::new(connection)),
                        Err(error) => self.complaints.turned_away(&error),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if exhausted(&error) => {
                    self.dismiss();
                    self.turn_away(&error);
                    self.poller.forget(&self.listener);
                    self.resume = Some(Instant::now() + PAUSE);
                    return;
                }
                Err(error) => self.complaints.turned_away(&error),
            }
        }
    }

    /// Hears a caller; returns it once it has said everything.
    fn serve(&mut self, number: u64, mut stranger: Stranger<A::Connection>) -> Option<Caller<A::Connection>> {
        match stranger.listen(&self.key) {
            Ok(Some(build)) => {
                self.short = None;
                self.poller.forget(&stranger.connection);
                return Some(stranger.into_caller(build));
            }
            Ok(None) => self.put(number, stranger),
            Err(error) => self.turn_away(&error),
        }
        None
    }

    /// Complains about a caller that has failed, or whom this process has failed.
    fn turn_away(&mut self, error: &io::Error) {
        if !exhausted(error) {
            return self.complaints.turned_away(error);
        }
        self.short.get_or_insert_with(Instant::now);
        let what = format!("{error}; see ulimit -n, or what else this process has open");
        self.complaints.turned_away(&io::Error::new(error.kind(), what));
    }

    fn put(&mut self, number: u64, stranger: Stranger<A::Connection>) {
        if let Some(equals) = self.unproved.get_mut(stranger.standing() as usize) {
            equals.insert(number);
        }
        self.strangers.insert(number, stranger);
        if self.unproved.iter().map(BTreeSet::len).sum::<usize>() > self.room {
            self.dismiss();
        }
    }

    fn take(&mut self, number: u64) -> Option<Stranger<A::Connection>> {
        let stranger = self.strangers.remove(&number)?;
        if let Some(equals) = self.unproved.get_mut(stranger.standing() as usize) {
            equals.remove(&number);
        }
        Some(stranger)
    }

    /// Sends away the one who has waited longest where there are most; of several such places, where they have come least
    /// far.
    fn dismiss(&mut self) {
        let weight = |(standing, equals): &(usize, &mut BTreeSet<u64>)| match *standing {
            GREETED => equals.len(),
            _ => 2 * equals.len(),
        };
        let most = self.unproved.iter_mut().enumerate().rev().max_by_key(weight);
        if let Some(number) = most.and_then(|(_, equals)| equals.pop_first()) {
            self.strangers.remove(&number);
            self.complaints.turned_away(&io::Error::other("too many connections at once"));
        }
    }

    /// Sends away those whose time is over.
    fn expire(&mut self) {
        while let Some((number, _)) = self.oldest().filter(|(_, since)| since.elapsed() > PATIENCE) {
            self.take(number);
            self.complaints.turned_away(&io::ErrorKind::TimedOut.into());
        }
    }

    /// Who has waited longest of those who have proved nothing, and since when.
    fn oldest(&self) -> Option<(u64, Instant)> {
        let oldest = *self.unproved.iter().filter_map(BTreeSet::first).min()?;
        Some((oldest, self.strangers.get(&oldest)?.since))
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
        self.complaints.denied.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{GREETING, MAGIC, approach};
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

    /// A hall with little room, and a way to call there.
    fn small() -> (Hall<UnixListener>, impl Fn() -> UnixStream + Clone + Send) {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("hexagram-test-{:032x}", u128::from_le_bytes(crate::bootstrap::random().unwrap()));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut hall = Hall::new(listener, KEY, 1).unwrap();
        hall.room = 4;
        (hall, move || UnixStream::connect_addr(&address).unwrap())
    }

    fn attend(hall: &mut Hall<UnixListener>) -> Vec<Caller<UnixStream>> {
        hall.wait(Some(Duration::ZERO), &[])
    }

    /// The callers who are still there, by the order in which they came. The hall itself says so: the end of a connection
    /// arrives late where a process that was just being started has a copy of its descriptor.
    fn present(hall: &Hall<UnixListener>) -> Vec<u64> {
        let mut present: Vec<u64> = hall.strangers.keys().copied().collect();
        present.sort_unstable();
        present
    }

    #[test]
    fn those_give_way_first_who_have_come_least_far() {
        let (mut hall, call) = small();
        let mut strangers: Vec<UnixStream> = (0..4).map(|_| call()).collect();
        attend(&mut hall);
        // The two that have waited longest begin to speak.
        for stranger in &mut strangers[..2] {
            stranger.write_all(b"hexa").unwrap();
        }
        attend(&mut hall);
        strangers.extend((0..3).map(|_| call()));
        attend(&mut hall);
        assert_eq!(present(&hall), [0, 1, 5, 6]);
    }

    #[test]
    fn those_who_greet_and_say_no_more_keep_nobody_out() {
        let (mut hall, call) = small();
        hall.room = 12;
        let greet = |_| {
            let mut stranger = call();
            stranger.write_all(&[MAGIC.as_slice(), &[0; GREETING - MAGIC.len()]].concat()).unwrap();
            stranger
        };
        let _greeted: Vec<UnixStream> = (0..8).map(greet).collect();
        attend(&mut hall);
        attend(&mut hall);
        let speak = |_| {
            let mut stranger = call();
            stranger.write_all(b"hexa").unwrap();
            stranger
        };
        let _speaking: Vec<UnixStream> = (0..4).map(speak).collect();
        attend(&mut hall);
        attend(&mut hall);
        assert_eq!(hall.unproved.each_ref().map(BTreeSet::len), [0, 4, 8]);
        let caller = std::thread::spawn({
            let call = call.clone();
            move || approach(&mut call(), KEY, &Outgoing::default().number(5).whole())
        });
        let mut proved = Vec::new();
        while !caller.is_finished() {
            proved.extend(hall.wait(Some(Duration::from_millis(10)), &[]));
        }
        caller.join().unwrap().unwrap();
        proved.extend(attend(&mut hall));
        assert_eq!(proved[0].message.number().unwrap(), 5);
    }

    #[test]
    fn who_has_proved_itself_never_gives_way() {
        let (mut hall, call) = small();
        let caller = std::thread::spawn({
            let call = call.clone();
            move || {
                let mut caller = call();
                // The length of a message, and nothing of it yet.
                approach(&mut caller, KEY, &8u32.to_le_bytes()).unwrap();
                caller
            }
        });
        while !caller.is_finished() {
            assert!(hall.wait(Some(Duration::from_millis(10)), &[]).is_empty());
        }
        let mut caller = caller.join().unwrap();
        attend(&mut hall);
        let _silent: Vec<UnixStream> = (0..20).map(|_| call()).collect();
        attend(&mut hall);
        assert_eq!(present(&hall), [0, 17, 18, 19, 20]);
        caller.write_all(&Outgoing::default().number(5).number(6).whole()[4..]).unwrap();
        let mut proved = attend(&mut hall);
        assert_eq!(proved.len(), 1);
        assert_eq!(proved[0].message.number().unwrap(), 5);
    }
}
