//! The meeting: rank 0 collects every rank's card and gives all of them the roster.
//!
//! ```text
//! both              handshake, as in `handshake`
//! newcomer → rank 0 card = length:u32 rank:u32 size:u32 pid:u32 host:text kernel:text machine:text transport:text
//!                          shm:text tcp:text sockets:u32 beat:u32 silence:u32 configuration:text digest:32
//! rank 0 → newcomer ROSTER:u32 job:16 card*     once everyone is there
//!                 | REFUSED:u32 reason:text remedy:text     at once, if somebody does not fit; or at the deadline, if one is missing
//! ```
//!
//! Only strangers are turned away. Who has proved to belong to the job and was built or told otherwise than rank 0 ends
//! the meeting for all, at once: the job could never be whole.

use super::deadline;
use super::hall::{Caller, Hall};
use super::handshake::{Build, Key, approach, random};
use super::meeting::{Listener, Stream};
use super::message::{Incoming, Outgoing, malformed};
use super::secret::Secret;
use super::variables::Placement;
use crate::error::{Error, Result};
use crate::health::Health;
use crate::limits;
use crate::socket::Tls;
use crate::transport::{Traffic, TransportKind};
use crate::world::JoinOptions;
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

const REFUSED: usize = 0;
const ROSTER: usize = 1;

/// How long rank 0 may take to answer at its deadline, or a newcomer to take what is written to it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a newcomer waits for rank 0's greeting before it tries again: something else may listen there.
const GREETING: Duration = Duration::from_secs(2);
/// How long rank 0, when it has given up, tells those who come why.
const LINGER: Duration = Duration::from_millis(500);
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
    /// Milliseconds between its heartbeats.
    pub(crate) beat: usize,
    /// Milliseconds without a heartbeat after which it gives another rank up.
    pub(crate) silence: usize,
    /// What the program says that all ranks must agree on; long ones are cut.
    pub(crate) configuration: String,
    /// Of the whole configuration.
    pub(crate) digest: [u8; 32],
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (host {}, pid {})", self.rank, self.host, self.pid)
    }
}

/// A configuration as people compare it.
struct Shown<'a>(&'a Card);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.configuration.is_empty() {
            return f.write_str("configuration is empty");
        }
        let [a, b, c, d, ..] = self.0.digest;
        let hash = u32::from_be_bytes([a, b, c, d]);
        write!(f, "configuration is `{}` (hash {hash:08x})", self.0.configuration)
    }
}

/// As a message can hold it: longer than any job is as good as the longest.
fn milliseconds(duration: Duration) -> usize {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX) as usize
}

impl Card {
    /// This process's card, without the addresses at which its transport can be reached.
    pub(crate) fn new(placement: &Placement, options: &JoinOptions) -> Result<Self> {
        let vigilance = options.vigilance()?;
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
            beat: milliseconds(vigilance.beat),
            silence: milliseconds(vigilance.silence),
            configuration: options.configuration.clone(),
            digest: Sha256::digest(&options.configuration).into(),
        })
    }

    pub(super) fn write(&self, message: Outgoing) -> Outgoing {
        let message = message.number(self.rank).number(self.size).number(self.pid as usize);
        let message = message.text(&self.host).text(&self.kernel).text(&self.machine).text(&self.transport);
        let message = message.text(&self.shm).text(&self.tcp).number(self.sockets);
        let message = message.number(self.beat).number(self.silence);
        message.text(&self.configuration).bytes(&self.digest)
    }

    pub(super) fn read(message: &mut Incoming) -> io::Result<Self> {
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
            beat: message.number()?,
            silence: message.number()?,
            configuration: message.text()?,
            digest: message.bytes()?,
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
        if (other.beat, other.silence) != (self.beat, self.silence) {
            return Some(format!(
                "it gives a rank up after {} ms without a heartbeat and sends one every {} ms, rank 0 after {} and every {} ms \
                 (HEXAGRAM_SILENCE, or JoinOptions::vigilance)",
                other.silence, other.beat, self.silence, self.beat
            ));
        }
        if other.digest != self.digest {
            return Some(format!("its {}, rank 0's {}", Shown(other), Shown(self)));
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
    /// What the data connections of this job prove.
    pub(crate) key: Key,
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
    secret: &Secret,
    limit: Duration,
) -> Result<(Roster, Seats)> {
    let deadline = deadline(limit);
    let (bytes, file) = secret.for_rank_0()?;
    let mut hall = Hall::new(listener, &bytes);
    // Removed before the listener closes: the address is what makes the file ours.
    let _file = file;
    let mut table = Table::new(mine);
    // Asked before anybody calls: what strangers take is given back.
    let is_short = limits::has_too_few_open_files_for(table.mine.size - 1);
    while !table.is_full() {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = if is_short {
            Err(table.short_of_files())
        } else if left.is_zero() {
            Err(table.incomplete(limit, &hall, secret))
        } else {
            let mut callers = hall.wait(Some(left), None).into_iter();
            let outcome = callers.try_for_each(|caller| table.seat(caller));
            table.refused.extend(callers.map(|caller| caller.connection));
            outcome
        };
        if let Err((what, remedy)) = outcome {
            table.give_up(&mut hall, &what, &remedy);
            return Err(Error::setup(what, remedy));
        }
    }
    let system = |cause| Error::system("draw random bytes", cause, "see getrandom(2)");
    let job = random().map_err(system)?;
    let key = Key::derive(&bytes, &job).map_err(system)?;
    Ok(table.announce(&job, key))
}

/// Who has come.
struct Table {
    /// By rank.
    cards: Vec<Option<Card>>,
    seats: Vec<Option<Stream>>,
    mine: Card,
    /// Those who have been sent away.
    refused: Vec<Stream>,
}

/// Why there will be no world, and what to do.
type End = (String, String);

impl Table {
    fn new(mine: Card) -> Self {
        let (mut cards, seats) = (vec![None; mine.size], (0..mine.size).map(|_| None).collect());
        cards[0] = Some(mine.clone());
        Table { cards, seats, mine, refused: Vec::new() }
    }

    fn is_full(&self) -> bool {
        self.cards.iter().all(Option::is_some)
    }

    /// Takes in somebody who belongs to the job; one who cannot join ends the meeting for all.
    fn seat(&mut self, caller: Caller<Stream>) -> Result<(), End> {
        let Caller { connection: stream, mut message, build } = caller;
        if let Err(error) = stream.set_blocking().and_then(|()| stream.set_patience(PATIENCE)) {
            tracing::warn!("turned a connection away: {error}");
            return Ok(());
        }
        let card = Card::read(&mut message);
        // What another build says may not be readable.
        let who = card.as_ref().map_or_else(|_| "a rank".to_owned(), Card::to_string);
        let objection = match &card {
            _ if build != Build::MINE => Some(format!("it runs {build}, rank 0 runs {}", Build::MINE)),
            Ok(card) => self.objection(card),
            Err(error) => Some(error.to_string()),
        };
        match (card, objection) {
            (Ok(mut card), None) => {
                let rank = card.rank;
                // All are equal: the roster need not repeat it.
                card.configuration.clear();
                (self.cards[rank], self.seats[rank]) = (Some(card), Some(stream));
                Ok(())
            }
            (_, reason) => {
                let what = format!("{who} cannot join: {}", reason.unwrap_or_default());
                self.refused.push(stream);
                Err((what, "start all ranks alike, from the same build".to_owned()))
            }
        }
    }

    fn objection(&self, card: &Card) -> Option<String> {
        self.mine.objection(card).or_else(|| {
            let Card { rank, host, pid, .. } = self.cards[card.rank].as_ref()?;
            Some(format!("rank {rank} has joined already, from {host} (pid {pid})"))
        })
    }

    /// The ranks that have not come.
    fn absent(&self) -> impl Iterator<Item = usize> {
        self.cards.iter().enumerate().filter(|(_, card)| card.is_none()).map(|(rank, _)| rank)
    }

    fn short_of_files(&self) -> End {
        let what = limits::open_files_for(&self.mine.to_string(), self.mine.size - 1);
        (what, limits::MORE_OPEN_FILES.to_owned())
    }

    /// Why not everyone has come in time.
    fn incomplete(&self, limit: Duration, hall: &Hall<Listener>, secret: &Secret) -> End {
        if hall.is_short() {
            return self.short_of_files();
        }
        let denied = hall.denied();
        let missing: Vec<String> = self.absent().map(|rank| rank.to_string()).collect();
        let plural = if missing.len() == 1 { "rank" } else { "ranks" };
        let (missing, size) = (missing.join(", "), self.cards.len());
        let denied =
            denied.map_or_else(String::new, |reason| format!("; a connection was turned away: {reason}"));
        let what = format!("{plural} {missing} of {size} did not join within {limit:?}{denied}");
        let remedy = "see whether these processes started and can reach rank 0's address";
        (what, format!("{remedy}{}", secret.hint()))
    }

    /// Tells everyone who has come, or comes in a moment, that there will be no world.
    fn give_up(&mut self, hall: &mut Hall<Listener>, why: &str, remedy: &str) {
        let until = Instant::now() + LINGER;
        let mut told = 1;
        let mut tell = |stream: &mut Stream| {
            told += 1;
            refuse(stream, why, remedy);
            told < self.mine.size
        };
        let mut late = true;
        for stream in self.seats.iter_mut().flatten().chain(&mut self.refused) {
            late = tell(stream);
        }
        while late && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            for mut caller in hall.wait(Some(left), None) {
                late = tell(&mut caller.connection);
            }
        }
    }

    fn announce(mut self, job: &[u8; 16], key: Key) -> (Roster, Seats) {
        let cards: Vec<Card> = self.cards.into_iter().flatten().collect();
        let head = Outgoing::default().number(ROSTER).bytes(job);
        let message = cards.iter().fold(head, |message, card| card.write(message));
        // A rank that has died meanwhile is found by whoever watches the control connections, and named to all.
        self.seats.iter_mut().flatten().for_each(|stream| drop(message.send(stream)));
        (Roster { key, cards }, Seats::Hub(self.seats))
    }
}

fn refuse(stream: &mut Stream, reason: &str, remedy: &str) {
    // A newcomer that is gone needs no answer.
    let answer = Outgoing::default().number(REFUSED).text(reason).text(remedy);
    let _ = stream.set_blocking().and_then(|()| answer.send(stream));
}

/// A connection to rank 0, which has proved to belong to the job.
pub(crate) struct Arrival {
    stream: Stream,
    secret: Vec<u8>,
    /// Which hexagram rank 0 is.
    build: Build,
}

impl Arrival {
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }
}

/// Reaches rank 0 and proves to belong to its job; tries again until the deadline, as rank 0 may start later.
pub(crate) fn arrive(
    placement: &Placement,
    secret: &Secret,
    tls: Option<&Tls>,
    limit: Duration,
) -> Result<Arrival> {
    let deadline = deadline(limit);
    let mut attempt = 0;
    loop {
        let patience = GREETING.min(deadline.saturating_duration_since(Instant::now()));
        let known = secret.read()?;
        let outcome = known.as_ref().ok_or_else(|| secret.missing()).and_then(|known| {
            let mut stream = placement.meeting.connect(attempt, patience, tls)?;
            stream.set_patience(patience)?;
            let build = approach(&mut stream, known)?;
            Ok(Arrival { stream, secret: known.clone(), build })
        });
        let cause = match outcome {
            Ok(arrival) => return Ok(arrival),
            Err(cause) => cause,
        };
        // The file of an earlier job may have been read before rank 0 replaced it.
        let hopeless = cause.kind() == io::ErrorKind::PermissionDenied && secret.read()? == known;
        if hopeless || Instant::now() + RETRY > deadline {
            let doing = format!("reach rank 0 at {} within {limit:?}", placement.meeting);
            return Err(Error::system(doing, cause, "see whether rank 0 started, and on that host"));
        }
        attempt += 1;
        // Nothing announces that a listener has come up.
        std::thread::sleep(RETRY);
    }
}

/// Takes part in the meeting, as any rank but 0.
pub(crate) fn attend(arrival: Arrival, mine: &Card, limit: Duration) -> Result<(Roster, Seats)> {
    let Arrival { mut stream, secret, build } = arrival;
    let failed = |cause: io::Error| {
        let doing = format!("join as rank {}", mine.rank);
        let cause = match cause.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(cause.kind(), "rank 0 closed the connection"),
            _ => cause,
        };
        Error::system(doing, cause, "see what rank 0 says: it may have ended")
    };
    // Rank 0 answers at its own deadline, which began earlier than this rank's or a little later.
    stream.set_patience(limit.saturating_add(PATIENCE)).map_err(failed)?;
    mine.write(Outgoing::default()).send(&mut stream).map_err(failed)?;
    if build != Build::MINE {
        // Said after the card, from which rank 0 learns the same. What it answers may not be readable.
        let what = format!("rank 0 runs {build}, rank {} runs {}", mine.rank, Build::MINE);
        return Err(Error::setup(what, "use the same build on all ranks"));
    }
    let mut answer = Incoming::receive(&mut stream).map_err(failed)?;
    match answer.number().map_err(failed)? {
        ROSTER => {
            let roster = read_roster(&mut answer, mine.size, &secret).map_err(failed)?;
            Ok((roster, Seats::Member(stream)))
        }
        REFUSED => {
            let reason = answer.text().map_err(failed)?;
            let remedy = answer.text().map_err(failed)?;
            Err(Error::setup(format!("rank 0 ended the meeting: {reason}"), remedy))
        }
        _ => Err(failed(malformed())),
    }
}

/// The rest of an answer that is a roster.
pub(super) fn read_roster(answer: &mut Incoming, size: usize, secret: &[u8]) -> io::Result<Roster> {
    let key = Key::derive(secret, &answer.bytes()?)?;
    let cards: io::Result<Vec<Card>> = (0..size).map(|_| Card::read(answer)).collect();
    Ok(Roster { key, cards: cards? })
}
