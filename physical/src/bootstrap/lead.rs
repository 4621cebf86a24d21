//! Rank 0's side of the meeting. Open this file to see who is waited for, and what ends the meeting for all.
//!
//! Nobody is waited for alone: rank 0 hears whoever speaks, those in the hall who have yet to prove themselves as well as
//! those who have a seat, and writes nothing that could keep it from the others.

use super::card::{Card, Entry, Roster};
use super::deadline;
use super::exhausted;
use super::hall::Hall;
use super::handshake::{Build, Key, random};
use super::join::{Answer, DIED, Hello, Intent, PATIENCE, Seats, ended};
use super::meeting::{Listener, Stream};
use super::message::{Incoming, Outgoing};
use super::poller::Poller;
use super::secret::Secret;
use super::stranger::Caller;
use crate::doorbell::timespec;
use crate::error::{Error, Peer, Result};
use crate::limits;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long rank 0, when it has given up, tells those who come why.
const LINGER: Duration = Duration::from_millis(500);
/// Longest card, in bytes.
const CARD: usize = 8 << 10;

/// Leads the meeting, as rank 0.
pub(crate) fn lead(
    listener: Listener,
    mine: Entry,
    secret: &Secret,
    limit: Duration,
) -> Result<(Roster, Seats)> {
    let deadline = deadline(limit);
    let (bytes, file) = secret.for_rank_0()?;
    let mut hall = Hall::new(listener, &bytes, mine.claims.size)?;
    // Removed before the listener closes: the address is what makes the file ours.
    let _file = file;
    let mut table = Table::new(mine)?;
    // Asked before anybody calls: what strangers take is given back.
    let mut outcome = table.has_room();
    while outcome.is_ok() && !table.is_full() {
        let left = deadline.saturating_duration_since(Instant::now());
        // Those who have come are heard before others are missed, however late this process was woken.
        let callers = hall.wait(Some(left), &[table.poller.as_fd()]);
        outcome = table.hear(callers);
        if outcome.is_ok() && !table.is_full() && left.is_zero() {
            outcome = Err(table.incomplete(limit, &hall, secret));
        }
    }
    if let Err(end) = outcome {
        table.give_up(&mut hall, &end);
        return Err(end.error());
    }
    let job = random().map_err(Error::no_random)?;
    let key = Key::derive(&bytes, &job).map_err(Error::no_random)?;
    Ok(table.announce(&job, key))
}

/// Why there will be no world.
enum End {
    /// Somebody does not fit, or is missing; and what to do.
    Refused(String, String),
    /// A rank has ended, and how.
    Failed(Peer, String),
}

impl End {
    /// What the others are told.
    fn answer(&self) -> Outgoing {
        match self {
            End::Refused(reason, remedy) => Answer::refused(reason, remedy),
            End::Failed(culprit, cause) => Answer::failed(culprit, cause),
        }
    }

    fn error(self) -> Error {
        match self {
            End::Refused(reason, remedy) => Error::setup(reason, remedy),
            End::Failed(culprit, cause) => ended(culprit, cause),
        }
    }

    fn misfit(who: &str, reason: &str) -> Self {
        End::refused(who, reason, "start all ranks alike, from the same build")
    }

    fn taken(who: &str, rank: usize, by: &Peer) -> Self {
        let Peer { host, pid, .. } = by;
        let reason = format!("rank {rank} has joined already, from {host} (pid {pid})");
        End::refused(who, &reason, "give each rank a number of its own, and each job another port")
    }

    fn refused(who: &str, reason: &str, remedy: &str) -> Self {
        End::Refused(format!("{who} cannot join: {reason}"), remedy.to_owned())
    }
}

/// A rank that has proved to belong to the job. The end of its connection is its own.
struct Seat {
    peer: Peer,
    stream: Stream,
    /// Read, and not yet a whole message.
    begun: Vec<u8>,
    card: Option<Card>,
}

impl Seat {
    /// Reads what has come; what the rank intends, once that is there as a whole.
    fn listen(&mut self) -> io::Result<Option<Intent>> {
        let mut piece = [0; 1024];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.begun.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Some(mut message) = Incoming::split(&mut self.begun, CARD)? {
                return Intent::read(&mut message).map(Some);
            }
        }
    }
}

/// Whether all ranks can reach each other by TCP.
#[derive(Default)]
struct Reach {
    networks: HashSet<String>,
    /// The first rank that accepts connections only where its own network can reach it, and where that is.
    near: Option<(Peer, String)>,
}

impl Reach {
    fn add(&mut self, entry: &Entry) {
        self.networks.insert(entry.network.clone());
        if let (None, Some(at)) = (&self.near, entry.only_near()) {
            self.near = Some((entry.card.peer(), at.to_owned()));
        }
    }

    fn check(&self) -> Result<(), End> {
        match &self.near {
            Some((peer, at)) if self.networks.len() > 1 => Err(End::Refused(
                format!(
                    "{peer} cannot join: it accepts connections at {at} only, where ranks of other hosts cannot reach it"
                ),
                "name an interface that they can reach in HEXAGRAM_INTERFACE there, or unset it".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Who has come.
struct Table {
    mine: Entry,
    /// By rank; none for rank 0.
    seats: Vec<Option<Seat>>,
    /// Watches the seats, each by its rank.
    poller: Poller,
    /// How many ranks have shown their card, rank 0 among them.
    complete: usize,
    reach: Reach,
    /// Those who have been sent away.
    refused: Vec<Stream>,
}

impl Table {
    fn new(mine: Entry) -> Result<Self> {
        let poller = Poller::new();
        let poller =
            poller.map_err(|cause| Error::system("watch newcomers", cause, limits::a_file_more()))?;
        let seats = (0..mine.claims.size).map(|_| None).collect();
        let mut reach = Reach::default();
        reach.add(&mine);
        Ok(Table { mine, seats, poller, complete: 1, reach, refused: Vec::new() })
    }

    fn size(&self) -> usize {
        self.seats.len()
    }

    fn is_full(&self) -> bool {
        self.complete == self.size()
    }

    fn has_room(&self) -> Result<(), End> {
        let peers = self.size() - 1;
        if limits::has_too_few_open_files_for(peers) { Err(self.short_of_files()) } else { Ok(()) }
    }

    /// Serves those who have just proved to belong to the job, and those seated who have something to say.
    fn hear(&mut self, callers: Vec<Caller<Stream>>) -> Result<(), End> {
        let mut callers = callers.into_iter();
        let mut outcome = callers.try_for_each(|caller| self.greet(caller));
        self.refused.extend(callers.map(|caller| caller.connection));
        for rank in self.poller.ready() {
            outcome = outcome.and_then(|()| self.listen(rank as usize));
        }
        outcome
    }

    /// Takes in somebody who belongs to the job; one who cannot join ends the meeting for all.
    fn greet(&mut self, caller: Caller<Stream>) -> Result<(), End> {
        let Caller { connection: stream, mut message, build } = caller;
        let hello = Hello::read(&mut message);
        let misfit = match &hello {
            _ if build != Build::MINE => Some(format!("it runs {build}, rank 0 runs {}", Build::MINE)),
            Ok(Hello::Rank(peer, size)) => self.misfit(peer, *size),
            Ok(Hello::Ended(..)) => None,
            Err(error) => Some(error.to_string()),
        };
        match (hello, misfit) {
            (Ok(Hello::Rank(peer, _)), None) => match self.holder(peer.rank) {
                None => self.seat(peer, stream),
                Some(holder) => {
                    self.refused.push(stream);
                    Err(End::taken(&peer.to_string(), peer.rank, &holder))
                }
            },
            (Ok(Hello::Ended(culprit, cause)), None) => Err(End::Failed(culprit, cause)),
            (hello, reason) => {
                self.refused.push(stream);
                // What another build says may not be readable.
                let who = match hello {
                    Ok(Hello::Rank(peer, _)) => peer.to_string(),
                    _ => "a rank".to_owned(),
                };
                Err(End::misfit(&who, &reason.unwrap_or_default()))
            }
        }
    }

    /// Why there is no seat for `peer`, which was told of `size` ranks.
    fn misfit(&self, peer: &Peer, size: usize) -> Option<String> {
        if size != self.size() {
            return Some(format!("it was told of {size} ranks, rank 0 of {}", self.size()));
        }
        if peer.rank >= size {
            return Some(format!("there is no rank {} in a world of {size}", peer.rank));
        }
        None
    }

    /// Who has joined as `rank` already.
    fn holder(&self, rank: usize) -> Option<Peer> {
        if rank == 0 {
            return Some(self.mine.card.peer());
        }
        self.seats[rank].as_ref().map(|seat| seat.peer.clone())
    }

    fn seat(&mut self, peer: Peer, mut stream: Stream) -> Result<(), End> {
        let rank = peer.rank;
        let welcome = Answer::seated(&self.mine.card.peer()).send(&mut stream);
        let watched = welcome.and_then(|()| self.poller.watch(&stream, rank as u64));
        match watched {
            Ok(()) => {
                self.seats[rank] = Some(Seat { peer, stream, begun: Vec::new(), card: None });
                Ok(())
            }
            Err(error) if exhausted(&error) => Err(self.short_of_files()),
            Err(_) => Err(End::Failed(peer, DIED.to_owned())),
        }
    }

    /// Hears what a seated rank has to say.
    fn listen(&mut self, rank: usize) -> Result<(), End> {
        let Some(Some(seat)) = self.seats.get_mut(rank) else { return Ok(()) };
        let entry = match seat.listen() {
            Ok(Some(Intent::Join(entry))) => entry,
            Ok(Some(Intent::GiveUp(cause))) => return Err(End::Failed(seat.peer.clone(), cause)),
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(End::misfit(&seat.peer.to_string(), &error.to_string()));
            }
            Err(_) => return Err(End::Failed(seat.peer.clone(), DIED.to_owned())),
        };
        let claims_another = entry.card.rank != rank || seat.card.is_some();
        let another = claims_another.then(|| format!("it says that it is rank {}, too", entry.card.rank));
        if let Some(reason) = another.or_else(|| self.mine.objection(&entry)) {
            return Err(End::misfit(&seat.peer.to_string(), &reason));
        }
        self.reach.add(&entry);
        seat.card = Some(entry.card);
        self.complete += 1;
        if self.is_full() { self.reach.check() } else { Ok(()) }
    }

    fn is_absent(&self, rank: usize) -> bool {
        rank > 0 && self.seats.get(rank).is_some_and(Option::is_none)
    }

    fn short_of_files(&self) -> End {
        let what = limits::open_files_for(&self.mine.card.peer().to_string(), self.size() - 1);
        End::Refused(what, limits::MORE_OPEN_FILES.to_owned())
    }

    /// The ranks that have not come.
    fn absent(&self) -> impl Iterator<Item = usize> {
        let absent = |seat: &Option<Seat>| seat.as_ref().is_none_or(|seat| seat.card.is_none());
        self.seats.iter().enumerate().skip(1).filter(move |(_, seat)| absent(seat)).map(|(rank, _)| rank)
    }

    /// Why not everyone has come in time.
    fn incomplete(&self, limit: Duration, hall: &Hall<Listener>, secret: &Secret) -> End {
        if hall.short_since().is_some() {
            return self.short_of_files();
        }
        let missing: Vec<String> = self.absent().map(|rank| rank.to_string()).collect();
        let plural = if missing.len() == 1 { "rank" } else { "ranks" };
        let missing = missing.join(", ");
        let size = self.size();
        let denied = hall
            .denied()
            .map_or_else(String::new, |reason| format!("; a connection was turned away: {reason}"));
        let what = format!("{plural} {missing} of {size} did not join within {limit:?}{denied}");
        let remedy = "see whether these processes started and can reach rank 0's address";
        let near = hall.listener().only_near().map_or_else(String::new, |at| {
            format!("; rank 0 listens at {at}, where ranks of other hosts cannot reach it")
        });
        End::Refused(what, format!("{remedy}{near}{}", secret.hint()))
    }

    /// Tells everyone who has come, or comes in a moment, that there will be no world.
    fn give_up(&mut self, hall: &mut Hall<Listener>, end: &End) {
        let answer = end.answer().whole();
        // Rank 0 knows, and who has ended without a seat does not come any more.
        let gone = matches!(end, End::Failed(culprit, _) if self.is_absent(culprit.rank));
        let seated = self.seats.iter_mut().flatten().map(|seat| &mut seat.stream);
        let mut told = 1 + usize::from(gone) + tell(seated.chain(&mut self.refused), &answer);
        let until = Instant::now() + LINGER;
        while told < self.size() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            let mut late = hall.wait(Some(left), &[]);
            // They are closed at once: there may be no descriptors for more of them.
            told += tell(late.iter_mut().map(|caller| &mut caller.connection), &answer);
        }
    }

    fn announce(self, job: &[u8; 16], key: Key) -> (Roster, Seats) {
        let mut cards = vec![self.mine.card];
        let mut streams = vec![None];
        for seat in self.seats.into_iter().skip(1) {
            let (card, stream) = seat.map(|seat| (seat.card, seat.stream)).unzip();
            cards.extend(card.flatten());
            streams.push(stream);
        }
        // Whoever has died meanwhile is found by whoever watches the control connections, and named to all.
        tell(streams.iter_mut().flatten(), &Answer::roster(&cards, job).whole());
        (Roster { key, cards }, Seats::Hub(streams))
    }
}

/// Writes `message` to all at once; returns how many they are. Whoever takes none of it for so long that it has to be
/// stopped is cut off, as it could not understand the rest.
fn tell<'a>(streams: impl Iterator<Item = &'a mut Stream>, message: &[u8]) -> usize {
    let mut unsaid: Vec<(&mut Stream, usize)> = streams.map(|stream| (stream, 0)).collect();
    let count = unsaid.len();
    let mut until = Instant::now() + PATIENCE;
    loop {
        let mut has_moved = false;
        unsaid.retain_mut(|(stream, said)| {
            let before = *said;
            let is_unsaid = say(stream, message, said);
            has_moved |= *said > before;
            is_unsaid
        });
        if has_moved {
            until = Instant::now() + PATIENCE;
        }
        let left = until.saturating_duration_since(Instant::now());
        if unsaid.is_empty() || left.is_zero() {
            break;
        }
        let mut sources: Vec<_> =
            unsaid.iter().map(|(stream, _)| PollFd::new(&**stream, PollFlags::OUT)).collect();
        let _ = poll(&mut sources, Some(&timespec(left)));
    }
    for (stream, _) in unsaid {
        let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
    }
    count
}

/// Writes what can be written of `message`, of which so much is `said`; whether there is more to say.
fn say(stream: &mut Stream, message: &[u8], said: &mut usize) -> bool {
    while *said < message.len() {
        match stream.write(&message[*said..]) {
            Ok(written) if written > 0 => *said += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            // Whoever is gone needs no more words.
            _ => return false,
        }
    }
    false
}
