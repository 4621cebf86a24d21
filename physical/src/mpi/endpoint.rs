//! One rank's end of a channel: letters in and out, the payloads that they announce, and MPI's own collectives.

use super::collectives::{Collectives, contradict, is_presence};
use super::link::{Comm, Flight};
use super::payload::Payload;
use crate::doorbell::{Doorbell, timespec};
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::health::Health;
use crate::landing::Landing;
use crate::matching::{Early, Match, Matcher, Posted};
use crate::memory::{ReadView, WriteView};
use crate::native;
use crate::stream::frame::{HEADER_BYTES, Header};
use crate::tickets::Tickets;
use crate::transport::{Bell, Got, Label, Land, Source, Ticket, Traffic, Transport, TransportKind};
use rustix::event::{PollFd, PollFlags, poll};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of the longest letter: what usual MPIs send without asking the receiver first.
const LETTER: usize = 4000;
/// Longest payload that rides in a letter.
const INLINE: usize = LETTER - HEADER_BYTES;
/// Letters that can arrive between two looks without being buffered by MPI.
const LETTERBOXES: usize = 8;
const LETTERS: c_int = 0;

/// Parks that only yield the core, before they begin to sleep.
const YIELDS: u32 = 200;
/// Shortest and longest sleep.
const NAP: Duration = Duration::from_micros(20);
const LONG_NAP: Duration = Duration::from_millis(1);

/// What came with a letter.
enum Message {
    Inline(Vec<u8>),
    /// A payload that waits at its sender, under this tag.
    Announced(c_int),
}

/// A letter that has not left yet, and the send that it completes.
struct Letter {
    send: Option<(Ticket, Got)>,
    flight: Flight<Box<[u8]>>,
}

pub(super) struct State {
    pub(super) comm: Comm,
    pub(super) tickets: Tickets,
    matcher: Matcher<(usize, Message)>,
    /// Where letters arrive, in order.
    letterboxes: VecDeque<Flight<Box<[u8]>>>,
    letters: Vec<Letter>,
    payloads: Vec<Payload>,
    pub(super) collectives: Collectives,
    /// For the next large message.
    next_tag: c_int,
    /// Peers that have closed their end.
    gone: Vec<bool>,
    /// Why MPI delivers no letters any more.
    broken: Option<String>,
}

pub(super) struct MpiEndpoint {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) health: Arc<Health>,
    traffic: Arc<Traffic>,
    largest_tag: c_int,
    crowded: bool,
    bell: Arc<Doorbell>,
    /// Parks in a row that brought nothing.
    parks: Cell<u32>,
    pub(super) state: RefCell<State>,
}

/// What an endpoint is made of.
pub(super) struct Parts {
    pub(super) comm: Comm,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) largest_tag: c_int,
    /// See [`Transport::crowded`].
    pub(super) crowded: bool,
    pub(super) collectives: Collectives,
    pub(super) health: Arc<Health>,
    pub(super) traffic: Arc<Traffic>,
}

impl MpiEndpoint {
    pub(super) fn new(parts: Parts) -> Result<Self> {
        let Parts { comm, rank, size, largest_tag, crowded, collectives, health, traffic } = parts;
        let bell = Arc::new(Doorbell::new()?);
        let ringer: Arc<dyn Bell> = bell.clone();
        health.wake(Arc::downgrade(&ringer));
        let mut letterboxes = VecDeque::new();
        for _ in 0..LETTERBOXES {
            letterboxes.push_back(open_letterbox(comm, Flight::new(vec![0; LETTER].into()))?);
        }
        let state = State {
            comm,
            tickets: Tickets::default(),
            matcher: Matcher::default(),
            letterboxes,
            letters: Vec::new(),
            payloads: Vec::new(),
            collectives,
            next_tag: LETTERS + 1,
            gone: vec![false; size],
            broken: None,
        };
        let parks = Cell::new(0);
        let state = RefCell::new(state);
        Ok(MpiEndpoint { rank, size, health, traffic, largest_tag, crowded, bell, parks, state })
    }

    /// Sends a letter, and tries at once to be done with it.
    fn write(&self, state: &mut State, to: usize, letter: Vec<u8>, send: Option<(Ticket, Got)>) {
        let mut flight = Flight::new(letter.into_boxed_slice());
        // SAFETY: the flight owns the bytes, and nobody writes them.
        let posted =
            unsafe { state.comm.send(to, LETTERS, &mut flight, |letter| (letter.as_ptr(), letter.len())) };
        match (posted, send) {
            (Ok(()), _) => {
                let mut newest = vec![Letter { send, flight }];
                mail(&mut newest, &mut state.tickets);
                state.letters.append(&mut newest);
            }
            (Err(error), Some((ticket, _))) => state.tickets.finish(ticket, Err(error)),
            // The announced payload will fail in the same way.
            (Err(_), None) => {}
        }
    }

    /// A letter without payload and without a ticket of its own.
    pub(super) fn write_header(&self, state: &mut State, to: usize, label: Label) {
        self.traffic.sent(TransportKind::Mpi, HEADER_BYTES);
        self.write(state, to, Header { length: 0, label }.to_bytes().to_vec(), None);
    }

    /// Reads the letters that have come.
    fn read(&self, state: &mut State) -> Result<bool> {
        let mut moved = false;
        while let Some(letterbox) = state.letterboxes.front_mut()
            && let Some(done) = letterbox.test()?
        {
            moved = true;
            let Some(mut letterbox) = state.letterboxes.pop_front() else { break };
            let from = done.source;
            let bytes = done.bytes;
            let letter = letterbox.held()[..bytes.min(LETTER)].to_vec();
            state.letterboxes.push_back(open_letterbox(state.comm, letterbox)?);
            match self.parse(&letter) {
                _ if state.collectives.hear_farewell(from, &letter) => state.gone[from] = true,
                Some((header, message)) => self.arrive(state, from, header, message),
                None => {
                    state.gone[from] = true;
                    self.health.blame(from, "sent bytes that are not hexagram's");
                }
            }
        }
        Ok(moved)
    }

    fn parse(&self, letter: &[u8]) -> Option<(Header, Message)> {
        let (header, rest) = letter.split_first_chunk()?;
        let header = Header::from_bytes(header)?;
        let message = if header.length > INLINE as u64 {
            let tag = c_int::from_le_bytes(rest.try_into().ok()?);
            Message::Announced((LETTERS + 1..=self.largest_tag).contains(&tag).then_some(tag)?)
        } else {
            Message::Inline((rest.len() as u64 == header.length).then(|| rest.to_vec())?)
        };
        Some((header, message))
    }

    /// A rank says that it is in a collective of MPI's; by now it may be past it. Whoever waits for a message in the same
    /// operation never gets it.
    fn hear_presence(&self, state: &mut State, from: usize, theirs: &Label) {
        state.collectives.hear_presence(from, theirs);
        let receives = state.matcher.awaited().map(|(ticket, _, mine)| (ticket, mine));
        let waiting = receives.chain(state.collectives.awaited()).find(|(_, mine)| contradict(mine, theirs));
        if let Some((ticket, mine)) = waiting {
            state.matcher.cancel(ticket);
            self.contradicted(state, ticket, &mine, from, theirs);
        }
    }

    /// Ends an operation in which `from` does not take part, as its letter shows, and answers it, so that the other side
    /// learns of it as well.
    fn contradicted(&self, state: &mut State, ticket: Ticket, mine: &Label, from: usize, theirs: &Label) {
        state.give_up(ticket);
        self.disagree(state, ticket, mine, from, theirs.fingerprint);
        self.write_header(state, from, Label { fingerprint: mine.fingerprint, ..*theirs });
    }

    fn arrive(&self, state: &mut State, from: usize, header: Header, message: Message) {
        if is_presence(&header.label) {
            return self.hear_presence(state, from, &header.label);
        }
        let label = header.label;
        let message = (header.length as usize, message);
        match state.matcher.find_posted(from, &label) {
            Match::Found(posted) => deliver(&self.health, state, from, posted, message),
            Match::Conflict(posted, theirs) => {
                self.disagree(state, posted.ticket, &posted.label, from, theirs)
            }
            Match::Nothing => {
                let contradicted = state.collectives.awaited().find(|(_, mine)| contradict(mine, &label));
                if let Some((ticket, mine)) = contradicted {
                    self.contradicted(state, ticket, &mine, from, &label);
                } else {
                    state.matcher.keep_early(Early { from, label, message });
                }
            }
        }
    }

    fn disagree(&self, state: &mut State, ticket: Ticket, mine: &Label, from: usize, theirs: Fingerprint) {
        let peer = self.health.peers()[from].clone();
        state.tickets.finish(ticket, Err(mine.mismatch(theirs, peer)));
    }

    /// Posts a receive under a ticket that is open already.
    pub(super) fn await_message(&self, state: &mut State, posted: Posted) {
        match state.matcher.find_early(posted.source, &posted.label) {
            Match::Found(early) => deliver(&self.health, state, early.from, posted, early.message),
            Match::Conflict(early, theirs) => {
                self.disagree(state, posted.ticket, &posted.label, early.from, theirs);
            }
            Match::Nothing => match state.collectives.elsewhere(posted.source, &posted.label) {
                Some((from, theirs)) => self.contradicted(state, posted.ticket, &posted.label, from, &theirs),
                None => state.matcher.keep_posted(posted),
            },
        }
    }

    /// A message that shows that its sender does something else in this operation; it is taken.
    pub(super) fn find_contradiction(&self, state: &mut State, label: &Label) -> Option<(usize, Label)> {
        match state.matcher.find_early(Source::Any, label) {
            Match::Conflict(early, _) => Some((early.from, early.label)),
            Match::Found(_) | Match::Nothing => None,
        }
    }
}

impl State {
    /// Takes a payload on, and moves what can be moved at once.
    fn start(&mut self, payload: Payload) {
        let mut payload = vec![payload];
        carry(&mut payload, &mut self.tickets);
        self.payloads.append(&mut payload);
    }

    /// Gives a collective up, and the letter that it waits for.
    fn give_up(&mut self, collective: Ticket) {
        if let Some(letter) = self.collectives.abandon(collective) {
            self.matcher.cancel(letter);
            self.tickets.close(letter);
        }
    }
}

/// Starts receiving the next letter.
fn open_letterbox(comm: Comm, mut letterbox: Flight<Box<[u8]>>) -> Result<Flight<Box<[u8]>>> {
    // SAFETY: the flight owns the bytes, and nobody looks at them before the request is done.
    unsafe {
        comm.receive(None, LETTERS, &mut letterbox, |bytes| (bytes.as_mut_ptr(), bytes.len()))?;
    }
    Ok(letterbox)
}

/// Hands a message over to its receive.
fn deliver(
    health: &Health,
    state: &mut State,
    from: usize,
    posted: Posted,
    (length, message): (usize, Message),
) {
    let Posted { ticket, label, mut landing, .. } = posted;
    if !landing.fits(length as u64) {
        let peer = health.peers()[from].clone();
        let error = label.wrong_size(length as u64, landing.capacity(), peer);
        return state.tickets.finish(ticket, Err(error));
    }
    match message {
        Message::Inline(bytes) => {
            landing.push(&bytes);
            drop(landing);
            state.tickets.finish(ticket, Ok(Got { peer: from, bytes: length }));
        }
        Message::Announced(tag) => {
            state.start(Payload::into(state.comm, (from, tag), ticket, landing, length));
        }
    }
}

/// Looks after letters. Whether any has left.
fn mail(letters: &mut Vec<Letter>, tickets: &mut Tickets) -> bool {
    let before = letters.len();
    letters.retain_mut(|letter| {
        let done = letter.flight.settle();
        if let (true, Some((ticket, got))) = (done, letter.send) {
            tickets.finish(ticket, Ok(got));
        }
        !done
    });
    letters.len() < before
}

/// Looks after payloads. Whether any moved.
fn carry(payloads: &mut Vec<Payload>, tickets: &mut Tickets) -> bool {
    let mut moved = false;
    payloads.retain_mut(|payload| {
        let Some(ticket) = payload.ticket else { return !payload.is_over() };
        match payload.pump() {
            Ok(bytes) => {
                moved |= bytes > 0;
                tickets.advance(ticket, bytes);
                if !payload.is_done() {
                    return true;
                }
                // Its view is released before anyone can learn that it is done.
                payload.abandon();
                tickets.finish(ticket, Ok(payload.got()));
            }
            Err(error) => {
                payload.abandon();
                tickets.finish(ticket, Err(error));
            }
        }
        !payload.is_over()
    });
    moved
}

impl Transport for MpiEndpoint {
    fn kind(&self) -> TransportKind {
        TransportKind::Mpi
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.bell.clone()
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let bytes = view.bytes().len();
        self.traffic.sent(TransportKind::Mpi, HEADER_BYTES + bytes);
        let mut letter = Vec::with_capacity(LETTER);
        letter.extend_from_slice(&Header { length: bytes as u64, label }.to_bytes());
        if bytes <= INLINE {
            letter.extend_from_slice(view.bytes());
            drop(view);
            self.write(state, to, letter, Some((ticket, Got { peer: to, bytes })));
            return ticket;
        }
        let tag = state.next_tag;
        state.next_tag = if tag == self.largest_tag { LETTERS + 1 } else { tag + 1 };
        letter.extend_from_slice(&tag.to_le_bytes());
        self.write(state, to, letter, None);
        state.start(Payload::out(state.comm, to, tag, ticket, view));
        ticket
    }

    fn post_recv(&self, source: Source, label: Label, view: WriteView, land: Land) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let posted = Posted { ticket, source, label, landing: Landing::new(view, land) };
        self.await_message(state, posted);
        ticket
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Got>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        state.matcher.cancel(ticket);
        let waiting = state.payloads.iter_mut().filter(|payload| payload.ticket == Some(ticket));
        waiting.for_each(Payload::abandon);
        state.give_up(ticket);
        state.tickets.close(ticket);
    }

    fn progress(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        let read = match self.read(state) {
            Ok(moved) => moved,
            Err(error) => {
                state.broken.get_or_insert_with(|| format!("cannot be reached any more ({error})"));
                false
            }
        };
        let mailed = mail(&mut state.letters, &mut state.tickets);
        let carried = carry(&mut state.payloads, &mut state.tickets);
        let moved = self.advance_collectives(state) | read | mailed | carried;
        if moved {
            self.parks.set(0);
        }
        moved
    }

    fn crowded(&self) -> bool {
        self.crowded
    }

    /// MPI has no event to wait for: it moves bytes only while someone asks. So this yields the core, and after a while
    /// sleeps between questions, the longer the more were in vain.
    fn park(&self, at_most: Duration) {
        let parks = self.parks.get();
        self.parks.set(parks.saturating_add(1));
        if parks < YIELDS {
            std::thread::yield_now();
            return;
        }
        let nap = NAP.saturating_mul(1 << ((parks - YIELDS) / 64).min(16)).min(LONG_NAP).min(at_most);
        let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], Some(&timespec(nap)));
        self.bell.hush();
    }

    fn ended(&self, peer: usize) -> Option<String> {
        let state = self.state.borrow();
        state.broken.clone().or_else(|| state.gone[peer].then(|| "closed its end of this channel".to_owned()))
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        self.state.borrow_mut().tickets.moved(ticket)
    }

    fn native(&self) -> Option<&dyn native::Collectives> {
        Some(self)
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let state = self.state.borrow();
        state.collectives.missing(ticket, &state.gone)
    }
}

impl Drop for MpiEndpoint {
    /// Tells the others that nothing more comes, and leaves what MPI has not finished to MPI, for good.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            let mut farewell = Flight::new(state.collectives.farewell(self.rank));
            // SAFETY: the flight owns the bytes, and leaks them if they have not left by the end of the loop.
            let sent = unsafe {
                state.comm.send(peer, LETTERS, &mut farewell, |letter| (letter.as_ptr(), letter.len()))
            };
            farewell.settle();
            // A peer that cannot be told has failed.
            drop(sent);
        }
        for letterbox in &mut state.letterboxes {
            letterbox.cancel();
            letterbox.settle();
        }
        mail(&mut state.letters, &mut state.tickets);
        carry(&mut state.payloads, &mut state.tickets);
    }
}
