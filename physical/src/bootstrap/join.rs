//! The meeting: rank 0 collects every rank's card and gives all of them the roster.
//!
//! ```text
//! both              handshake
//! newcomer → rank 0 card = rank:u32 size:u32 pid:u32 host:text kernel:text machine:text transport:text
//!                           shm:text tcp:text sockets:u32
//! rank 0 → newcomer REFUSED:u32 reason:text     at once: wrong size, taken rank, another transport
//!                 | ROSTER:u32 job:16 card*     once everyone is there
//!                 | REFUSED:u32 reason:text     at the deadline, naming who is missing
//! ```

use super::deadline;
use super::exhausted;
use super::handshake::{approach, random, receive};
use super::meeting::{Listener, Stream};
use super::message::{Incoming, Outgoing, malformed};
use super::variables::Placement;
use crate::doorbell::{Doorbell, timespec};
use crate::error::{Error, Result};
use crate::health::Health;
use crate::transport::{Bell, Traffic, TransportKind};
use crate::world::JoinOptions;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const REFUSED: usize = 0;
const ROSTER: usize = 1;

/// How long a newcomer may take over one step of its handshake; longer is a port scan.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long a newcomer waits for rank 0's greeting before it tries again: something else may listen there.
const GREETING: Duration = Duration::from_secs(2);
/// Newcomers in their handshake at once; more wait in the listener's queue.
const CROWD: usize = 256;
/// Between two tries to reach a rank 0 that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// Same for all processes on one kernel.
    pub(crate) kernel: String,
    /// Same for all processes that are to share memory.
    pub(crate) machine: String,
    pub(crate) transport: String,
    /// Where it exchanges shared memory; empty if its transport does not.
    pub(crate) shm: String,
    /// Where it accepts TCP connections; empty if its transport uses none.
    pub(crate) tcp: String,
    /// TCP connections that it wants for one pair of ranks and channel.
    pub(crate) sockets: usize,
}

impl Card {
    /// This process's card, without the addresses at which its transport can be reached.
    pub(crate) fn new(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        // Shared memory is handed over abstract sockets, which belong to a network namespace.
        let machine = format!("{} {}", boot.trim(), network.display());
        Ok(Card {
            rank: placement.rank,
            size: placement.size,
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            kernel: boot.trim().to_owned(),
            machine: options.host().unwrap_or(machine),
            transport: options.transport.to_string(),
            shm: String::new(),
            tcp: String::new(),
            sockets: options.sockets()?,
        })
    }

    fn write(&self, message: Outgoing) -> Outgoing {
        let message = message.number(self.rank).number(self.size).number(self.pid as usize);
        let message = message.text(&self.host).text(&self.kernel).text(&self.machine).text(&self.transport);
        message.text(&self.shm).text(&self.tcp).number(self.sockets)
    }

    fn read(message: &mut Incoming) -> io::Result<Self> {
        Ok(Card {
            rank: message.number()?,
            size: message.number()?,
            pid: message.number()? as u32,
            host: message.text()?,
            kernel: message.text()?,
            machine: message.text()?,
            transport: message.text()?,
            shm: message.text()?,
            tcp: message.text()?,
            sockets: message.number()?,
        })
    }

    /// Why `other` cannot join this rank's job, if so.
    fn objection(&self, other: &Card) -> Option<String> {
        if other.size != self.size {
            return Some(format!("it was told of {} ranks, rank 0 of {}", other.size, self.size));
        }
        if other.rank >= self.size {
            return Some(format!("there is no rank {} in a world of {}", other.rank, self.size));
        }
        if other.transport != self.transport {
            return Some(format!("it uses transport {}, rank 0 uses {}", other.transport, self.transport));
        }
        if self.transport == TransportKind::Shm.to_string() && other.machine != self.machine {
            return Some(format!(
                "shared memory does not reach from {} to {}: use the mixed or the tcp transport",
                other.host, self.host
            ));
        }
        None
    }
}

/// What everyone knows once everyone has joined.
pub(crate) struct Roster {
    /// Random; marks the data connections of this job.
    pub(crate) job: [u8; 16],
    /// By rank.
    pub(crate) cards: Vec<Card>,
}

impl Roster {
    /// How many ranks share the cores of one kernel with `rank`, itself included, in whatever containers they are.
    pub(crate) fn neighbours(&self, rank: usize) -> usize {
        self.cards.iter().filter(|card| card.kernel == self.cards[rank].kernel).count()
    }
}

/// What a rank knows of its world once everyone has joined: the same for every transport between processes.
pub(crate) struct Membership {
    pub(crate) rank: usize,
    pub(crate) roster: Roster,
    pub(crate) health: Arc<Health>,
    pub(crate) traffic: Arc<Traffic>,
    /// How long to wait for another rank to open the same channel.
    pub(crate) limit: Duration,
}

impl Membership {
    pub(crate) fn size(&self) -> usize {
        self.roster.cards.len()
    }

    pub(crate) fn card(&self, rank: usize) -> &Card {
        &self.roster.cards[rank]
    }

    /// What the others know this rank by.
    pub(crate) fn mine(&self) -> &Card {
        self.card(self.rank)
    }
}

/// The connections that remain after the meeting.
pub(crate) enum Seats {
    /// Rank 0's, to every other rank; none to itself.
    Hub(Vec<Option<Stream>>),
    /// Another rank's, to rank 0.
    Member(Stream),
}

/// Leads the meeting, as rank 0.
pub(crate) fn lead(
    listener: Listener,
    mine: Card,
    secret: &[u8],
    limit: Duration,
) -> Result<(Roster, Seats)> {
    let deadline = deadline(limit);
    let size = mine.size;
    let mut cards: Vec<Option<Card>> = vec![None; size];
    let mut seats: Vec<Option<Stream>> = (0..size).map(|_| None).collect();
    cards[0] = Some(mine.clone());
    let door = Door::open(listener, secret)?;
    let mut present = 1;
    let mut refused = String::new();
    while present < size {
        let (card, mut stream) =
            match door.newcomers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(newcomer) => newcomer,
                Err(RecvTimeoutError::Timeout) => return Err(absent(&cards, &mut seats, limit, &refused)),
                Err(RecvTimeoutError::Disconnected) => {
                    let remedy =
                        "see the warnings above; raise the limits of open files and threads (ulimit -n, -u)";
                    return Err(Error::setup("rank 0 cannot accept connections any more", remedy));
                }
            };
        let taken = cards.get(card.rank).and_then(Option::as_ref);
        let objection = mine.objection(&card).or_else(|| {
            taken.map(|first| {
                format!("rank {} has joined already, from {} (pid {})", first.rank, first.host, first.pid)
            })
        });
        if let Some(reason) = objection {
            tracing::warn!("refused rank {} from {} (pid {}): {reason}", card.rank, card.host, card.pid);
            refuse(&mut stream, &reason);
            refused = format!("; rank {} from {} was refused: {reason}", card.rank, card.host);
            continue;
        }
        present += 1;
        let rank = card.rank;
        (cards[rank], seats[rank]) = (Some(card), Some(stream));
    }
    drop(door);
    let job = random().map_err(|cause| Error::system("draw random bytes", cause, "see getrandom(2)"))?;
    let roster = Roster { job, cards: cards.into_iter().flatten().collect() };
    announce(&roster, &mut seats);
    Ok((roster, Seats::Hub(seats)))
}

fn refuse(stream: &mut Stream, reason: &str) {
    // A newcomer that is gone needs no answer.
    let _ = Outgoing::default().number(REFUSED).text(reason).send(stream);
}

fn absent(cards: &[Option<Card>], seats: &mut [Option<Stream>], limit: Duration, refused: &str) -> Error {
    let missing: Vec<String> =
        (0..cards.len()).filter(|rank| cards[*rank].is_none()).map(|rank| rank.to_string()).collect();
    let plural = if missing.len() == 1 { "rank" } else { "ranks" };
    let what =
        format!("{plural} {} of {} did not join within {limit:?}{refused}", missing.join(", "), cards.len());
    seats.iter_mut().flatten().for_each(|stream| refuse(stream, &what));
    Error::setup(what, "see whether these processes started and can reach rank 0's address")
}

fn announce(roster: &Roster, seats: &mut [Option<Stream>]) {
    let head = Outgoing::default().number(ROSTER).bytes(&roster.job);
    let message = roster.cards.iter().fold(head, |message, card| card.write(message));
    // A rank that has died meanwhile is found by whoever watches the control connections, and named to all.
    seats.iter_mut().flatten().for_each(|stream| drop(message.send(stream)));
}

/// Accepts and checks newcomers on threads of its own, so that a silent stranger delays nobody.
struct Door {
    newcomers: mpsc::Receiver<(Card, Stream)>,
    closed: Arc<AtomicBool>,
    bell: Arc<Doorbell>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Door {
    fn open(listener: Listener, secret: &[u8]) -> Result<Self> {
        let (sender, newcomers) = mpsc::channel();
        let (closed, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(Doorbell::new()?));
        let (secret, their_closed, their_bell) = (secret.to_vec(), Arc::clone(&closed), Arc::clone(&bell));
        let thread = std::thread::Builder::new().name("hexagram-door".to_owned()).spawn(move || {
            attend(&listener, &secret, &sender, &their_closed, &their_bell);
        });
        let thread = thread.map_err(|cause| Error::system("start a thread", cause, "raise ulimit -u"))?;
        Ok(Door { newcomers, closed, bell, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn attend(
    listener: &Listener,
    secret: &[u8],
    newcomers: &mpsc::Sender<(Card, Stream)>,
    closed: &AtomicBool,
    bell: &Doorbell,
) {
    let inside = Arc::new(AtomicUsize::new(0));
    while !closed.load(Ordering::Acquire) {
        let mut sources = vec![PollFd::new(bell, PollFlags::IN)];
        let full = inside.load(Ordering::Acquire) >= CROWD;
        if !full {
            sources.push(PollFd::new(listener, PollFlags::IN));
        }
        let _ = poll(&mut sources, full.then(|| timespec(RETRY)).as_ref());
        if full {
            continue;
        }
        let stream = match listener.accept() {
            Ok(stream) => stream,
            Err(error) if exhausted(&error) => {
                tracing::warn!("rank 0 cannot accept connections: {error}");
                return;
            }
            Err(_) => continue,
        };
        inside.fetch_add(1, Ordering::AcqRel);
        let (secret, newcomers, inside) = (secret.to_vec(), newcomers.clone(), Arc::clone(&inside));
        let handshake = move || {
            match check(stream, &secret) {
                // The meeting may be over.
                Ok(newcomer) => drop(newcomers.send(newcomer)),
                Err(reason) => tracing::warn!("turned a connection away: {reason}"),
            }
            inside.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = std::thread::Builder::new().spawn(handshake) {
            tracing::warn!("rank 0 cannot start a thread: {error}");
            return;
        }
    }
}

fn check(mut stream: Stream, secret: &[u8]) -> io::Result<(Card, Stream)> {
    stream.set_patience(HANDSHAKE)?;
    receive(&mut stream, secret)?;
    let card = Card::read(&mut Incoming::receive(&mut stream)?)?;
    Ok((card, stream))
}

/// Reaches rank 0 and proves to belong to its job; tries again until the deadline, as rank 0 may start later.
pub(crate) fn arrive(placement: &Placement, limit: Duration) -> Result<Stream> {
    let deadline = deadline(limit);
    let mut attempt = 0;
    loop {
        let patience = GREETING.min(deadline.saturating_duration_since(Instant::now()));
        let outcome = placement.meeting.connect(attempt, patience).and_then(|mut stream| {
            stream.set_patience(patience)?;
            approach(&mut stream, &placement.secret)?;
            Ok(stream)
        });
        let cause = match outcome {
            Ok(stream) => return Ok(stream),
            Err(cause) => cause,
        };
        let hopeless = matches!(cause.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported);
        if hopeless || Instant::now() + RETRY > deadline {
            let doing = format!("reach rank 0 at {} within {limit:?}", placement.meeting);
            return Err(Error::system(doing, cause, "see whether rank 0 started, and on that host"));
        }
        attempt += 1;
        // Nothing announces that a listener has come up.
        std::thread::sleep(RETRY);
    }
}

/// Takes part in the meeting, as any rank but 0, over a stream from [`arrive`].
pub(crate) fn attend_as_member(mut stream: Stream, mine: &Card, limit: Duration) -> Result<(Roster, Seats)> {
    let failed = |cause: io::Error| {
        let doing = format!("join as rank {}", mine.rank);
        Error::system(doing, cause, "see what rank 0 says: it may have ended")
    };
    // Rank 0 answers at its own deadline, which began earlier than this rank's or a little later.
    stream.set_patience(limit.saturating_add(HANDSHAKE)).map_err(failed)?;
    mine.write(Outgoing::default()).send(&mut stream).map_err(failed)?;
    let mut answer = Incoming::receive(&mut stream).map_err(failed)?;
    match answer.number().map_err(failed)? {
        ROSTER => {
            let job = answer.bytes().map_err(failed)?;
            let cards: io::Result<Vec<Card>> = (0..mine.size).map(|_| Card::read(&mut answer)).collect();
            Ok((Roster { job, cards: cards.map_err(failed)? }, Seats::Member(stream)))
        }
        REFUSED => {
            let reason = answer.text().map_err(failed)?;
            let what = format!("rank 0 refused rank {}: {reason}", mine.rank);
            Err(Error::setup(what, "start all ranks alike"))
        }
        _ => Err(failed(malformed())),
    }
}
