//! Endpoint of one rank on a channel: eager messages in both directions, the payloads that they announce, and MPI
//! collectives.

use super::collectives::{MpiCollectives, contradict, is_presence};
use super::eager::{
    EAGER_BYTES, EAGER_RECEIVES, EAGER_TAG, EagerPayload, EagerSend, INLINE, parse, post_eager_receive,
    progress_sends,
};
use super::link::{MpiComm, Remote, RequestSet};
use super::payload::PayloadTransfer;
use crate::backends::stream::frame::Header;
use crate::control::health::Health;
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use crate::transport::fingerprint::Fingerprint;
use crate::transport::matching::{Early, Match, Matcher, Posted};
use crate::transport::native;
use crate::transport::tickets::Tickets;
use crate::transport::{
    Bell, HEADER_BYTES, Label, ReceiveMode, Received, Source, Tally, Ticket, Transport, TransportKind,
};
use crate::waiting::doorbell::{Doorbell, timespec};
use rustix::event::{PollFd, PollFlags, poll};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Number of parks that only yield the core, before they begin to sleep.
const YIELDS: u32 = 200;
/// Shortest sleep.
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// Longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Operations of one endpoint.
pub(super) struct MpiState {
    pub(super) comm: MpiComm,
    /// Ranks in the world, by their rank in the communicator.
    ranks: Box<[usize]>,
    pub(super) tickets: Tickets,
    matcher: Matcher<(usize, EagerPayload)>,
    /// Receives of eager messages, in order.
    eager_receives: VecDeque<RequestSet<Box<[u8]>>>,
    eager_sends: Vec<EagerSend>,
    transfers: Vec<PayloadTransfer>,
    pub(super) collectives: MpiCollectives,
    /// Tag of the next large message.
    next_tag: c_int,
    /// True for peers that have closed their endpoint.
    pub(super) gone: Vec<bool>,
    /// Reason why MPI delivers no messages any more.
    broken: Option<String>,
}

/// Endpoint of one rank in a world of MPI.
pub(super) struct MpiEndpoint {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) health: Arc<Health>,
    pub(super) tally: Arc<Tally>,
    largest_tag: c_int,
    crowded: bool,
    bell: Arc<Doorbell>,
    /// Number of consecutive parks without progress.
    parks: Cell<u32>,
    pub(super) state: RefCell<MpiState>,
}

/// Parts from which an endpoint is built.
pub(super) struct EndpointParts {
    pub(super) comm: MpiComm,
    /// Ranks of the communicator, in ascending order.
    pub(super) ranks: Box<[usize]>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) largest_tag: c_int,
    /// True if ranks outnumber cores: see [`Transport::crowded`].
    pub(super) crowded: bool,
    pub(super) collectives: MpiCollectives,
    pub(super) health: Arc<Health>,
    pub(super) tally: Arc<Tally>,
}

impl MpiEndpoint {
    /// Creates the endpoint and posts its receives of eager messages.
    pub(super) fn new(parts: EndpointParts) -> Result<Self> {
        let EndpointParts { comm, ranks, rank, size, largest_tag, crowded, collectives, health, tally } =
            parts;
        let bell = Arc::new(Doorbell::new()?);
        let ringer: Arc<dyn Bell> = bell.clone();
        health.wake(Arc::downgrade(&ringer));
        let mut eager_receives = VecDeque::new();
        for _ in 0..EAGER_RECEIVES {
            eager_receives.push_back(post_eager_receive(comm, RequestSet::new(vec![0; EAGER_BYTES].into()))?);
        }
        let state = MpiState {
            comm,
            ranks,
            tickets: Tickets::default(),
            matcher: Matcher::default(),
            eager_receives,
            eager_sends: Vec::new(),
            transfers: Vec::new(),
            collectives,
            next_tag: EAGER_TAG + 1,
            gone: vec![false; size],
            broken: None,
        };
        let parks = Cell::new(0);
        let state = RefCell::new(state);
        Ok(MpiEndpoint { rank, size, health, tally, largest_tag, crowded, bell, parks, state })
    }

    /// Sends an eager message, and tries to complete it immediately.
    fn write(&self, state: &mut MpiState, to: usize, message: Vec<u8>, send: Option<(Ticket, Received)>) {
        let mut requests = RequestSet::new(message.into_boxed_slice());
        let Remote { comm, place, .. } = state.remote(to);
        // SAFETY: the request set owns the bytes, and no thread writes them.
        let posted = unsafe {
            comm.send(place, EAGER_TAG, &mut requests, |message| (message.as_ptr(), message.len()))
        };
        match (posted, send) {
            (Ok(()), _) => {
                let mut newest = vec![EagerSend { send, requests }];
                progress_sends(&mut newest, &mut state.tickets);
                state.eager_sends.append(&mut newest);
            }
            (Err(error), Some((ticket, _))) => state.tickets.finish(ticket, Err(error)),
            // The announced payload will fail in the same way.
            (Err(_), None) => {}
        }
    }

    /// Sends an eager message without a payload and without a ticket.
    pub(super) fn write_header(&self, state: &mut MpiState, to: usize, label: Label) {
        self.tally.sent(HEADER_BYTES);
        self.write(state, to, Header { length: 0, label }.to_bytes().to_vec(), None);
    }

    /// Reads the eager messages that have arrived. Returns true if there were any.
    fn read(&self, state: &mut MpiState) -> Result<bool> {
        let mut moved = false;
        while let Some(receive) = state.eager_receives.front_mut()
            && let Some(done) = receive.test()?
        {
            moved = true;
            let Some(mut receive) = state.eager_receives.pop_front() else { break };
            let from = state.ranks[done.source];
            let bytes = done.bytes;
            let message = receive.held()[..bytes.min(EAGER_BYTES)].to_vec();
            state.eager_receives.push_back(post_eager_receive(state.comm, receive)?);
            match parse(&message, self.largest_tag) {
                _ if state.collectives.record_close(from, &message) => state.gone[from] = true,
                Some((header, message)) => self.arrive(state, from, header, message),
                None => {
                    state.gone[from] = true;
                    self.health.report_failure(from, "sent bytes that are not of the hexagram protocol");
                }
            }
        }
        Ok(moved)
    }

    /// Records that a rank is in an MPI collective; it may have left it by now. An operation of this rank that waits
    /// for a message in the same operation fails, since the message would never come.
    fn record_presence(&self, state: &mut MpiState, from: usize, theirs: &Label) {
        state.collectives.record_presence(from, theirs);
        let receives = state.matcher.awaited().map(|(ticket, _, mine)| (ticket, mine));
        let waiting = receives.chain(state.collectives.awaited()).find(|(_, mine)| contradict(mine, theirs));
        if let Some((ticket, mine)) = waiting {
            state.matcher.cancel(ticket);
            self.fail_contradicted(state, ticket, &mine, from, theirs);
        }
    }

    /// Fails an operation in which `from` does not take part, as its message shows, and answers it, so that the other
    /// side fails as well.
    fn fail_contradicted(
        &self,
        state: &mut MpiState,
        ticket: Ticket,
        mine: &Label,
        from: usize,
        theirs: &Label,
    ) {
        state.give_up(ticket);
        self.disagree(state, ticket, mine, from, theirs.fingerprint);
        self.write_header(state, from, Label { fingerprint: mine.fingerprint, ..*theirs });
    }

    /// Matches an eager message with receives and collectives.
    fn arrive(&self, state: &mut MpiState, from: usize, header: Header, message: EagerPayload) {
        if is_presence(&header.label) {
            return self.record_presence(state, from, &header.label);
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
                    self.fail_contradicted(state, ticket, &mine, from, &label);
                } else {
                    state.matcher.keep_early(Early { from, label, message });
                }
            }
        }
    }

    /// Fails an operation whose peer performs a different one.
    fn disagree(&self, state: &mut MpiState, ticket: Ticket, mine: &Label, from: usize, theirs: Fingerprint) {
        let peer = self.health.peers()[from].clone();
        state.tickets.finish(ticket, Err(mine.mismatch(theirs, peer)));
    }

    /// Posts a receive under an open ticket.
    pub(super) fn await_message(&self, state: &mut MpiState, posted: Posted) {
        match state.matcher.find_early(posted.source, &posted.label) {
            Match::Found(early) => deliver(&self.health, state, early.from, posted, early.message),
            Match::Conflict(early, theirs) => {
                self.disagree(state, posted.ticket, &posted.label, early.from, theirs);
            }
            Match::Nothing => match state.collectives.elsewhere(posted.source, &posted.label) {
                Some((from, theirs)) => {
                    self.fail_contradicted(state, posted.ticket, &posted.label, from, &theirs)
                }
                None => state.matcher.keep_posted(posted),
            },
        }
    }

    /// Takes a message whose sender performs a different operation under this number.
    pub(super) fn find_contradiction(&self, state: &mut MpiState, label: &Label) -> Option<(usize, Label)> {
        match state.matcher.find_early(Source::Any, label) {
            Match::Conflict(early, _) => Some((early.from, early.label)),
            Match::Found(_) | Match::Nothing => None,
        }
    }
}

impl MpiState {
    /// Returns a rank of the world as the communicator numbers it.
    fn remote(&self, rank: usize) -> Remote {
        let place = match self.ranks.get(rank) == Some(&rank) {
            true => rank,
            // Only ranks of the communicator have messages here.
            false => self.ranks.binary_search(&rank).unwrap_or(rank),
        };
        Remote { comm: self.comm, rank, place }
    }

    /// Starts a transfer, and moves all bytes that can be moved immediately.
    fn start(&mut self, payload: PayloadTransfer) {
        let mut payload = vec![payload];
        progress_transfers(&mut payload, &mut self.tickets);
        self.transfers.append(&mut payload);
    }

    /// Gives a collective up, and the message that it waits for.
    fn give_up(&mut self, collective: Ticket) {
        if let Some(message) = self.collectives.abandon(collective) {
            self.matcher.cancel(message);
            self.tickets.close(message);
        }
    }
}

/// Hands a message over to its receive.
fn deliver(
    health: &Health,
    state: &mut MpiState,
    from: usize,
    posted: Posted,
    (length, message): (usize, EagerPayload),
) {
    let Posted { ticket, label, mut landing, .. } = posted;
    if !landing.fits(length as u64) {
        let peer = health.peers()[from].clone();
        let error = label.wrong_size(length as u64, landing.capacity(), peer);
        return state.tickets.finish(ticket, Err(error));
    }
    match message {
        EagerPayload::Inline(bytes) => {
            landing.push(&bytes);
            drop(landing);
            state.tickets.finish(ticket, Ok(Received { peer: from, bytes: length }));
        }
        EagerPayload::Announced(tag) => {
            state.start(PayloadTransfer::into((state.remote(from), tag), ticket, landing, length));
        }
    }
}

/// Advances large payloads. Returns true if bytes moved.
fn progress_transfers(transfers: &mut Vec<PayloadTransfer>, tickets: &mut Tickets) -> bool {
    let mut moved = false;
    transfers.retain_mut(|payload| {
        let Some(ticket) = payload.ticket else { return !payload.is_over() };
        match payload.progress() {
            Ok(bytes) => {
                moved |= bytes > 0;
                tickets.advance(ticket, bytes);
                if !payload.is_done() {
                    return true;
                }
                // Its view is released before anyone can see that it is complete.
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

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.bell.clone()
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let bytes = view.byte_len();
        self.tally.sent(HEADER_BYTES + bytes);
        let mut message = Vec::with_capacity(EAGER_BYTES);
        message.extend_from_slice(&Header { length: bytes as u64, label }.to_bytes());
        if bytes <= INLINE {
            message.extend_from_slice(view.bytes());
            drop(view);
            self.write(state, to, message, Some((ticket, Received { peer: to, bytes })));
            return ticket;
        }
        let tag = state.next_tag;
        state.next_tag = if tag == self.largest_tag { EAGER_TAG + 1 } else { tag + 1 };
        message.extend_from_slice(&tag.to_le_bytes());
        self.write(state, to, message, None);
        state.start(PayloadTransfer::out(state.remote(to), tag, ticket, view));
        ticket
    }

    fn post_recv(&self, source: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let posted = Posted::new(ticket, source, label, view, land);
        self.await_message(state, posted);
        ticket
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Received>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        state.matcher.cancel(ticket);
        let waiting = state.transfers.iter_mut().filter(|payload| payload.ticket == Some(ticket));
        waiting.for_each(PayloadTransfer::abandon);
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
        let sent = progress_sends(&mut state.eager_sends, &mut state.tickets);
        let transferred = progress_transfers(&mut state.transfers, &mut state.tickets);
        let moved = self.advance_collectives(state) | read | sent | transferred;
        if moved {
            self.parks.set(0);
        }
        moved
    }

    fn crowded(&self) -> bool {
        self.crowded
    }

    /// Yields the core, and after a while sleeps between polls, the longer the more of them found nothing. MPI has no
    /// event to wait for: it moves bytes only while it is polled.
    fn park(&self, at_most: Duration) {
        let parks = self.parks.get();
        self.parks.set(parks.saturating_add(1));
        if parks < YIELDS {
            std::thread::yield_now();
            return;
        }
        let sleep = SHORTEST_SLEEP
            .saturating_mul(1 << ((parks - YIELDS) / 64).min(16))
            .min(LONGEST_SLEEP)
            .min(at_most);
        let _ = poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], Some(&timespec(sleep)));
        self.bell.clear();
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
}

impl Drop for MpiEndpoint {
    /// Notifies the other ranks that no more messages come, and leaves unfinished requests to MPI, forever.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for (place, _) in state.ranks.iter().enumerate().filter(|(_, peer)| **peer != self.rank) {
            let mut close_message = RequestSet::new(state.collectives.close_message(self.rank));
            // SAFETY: the request set owns the bytes, and leaks them if they have not left by the end of the loop.
            let sent = unsafe {
                state
                    .comm
                    .send(place, EAGER_TAG, &mut close_message, |message| (message.as_ptr(), message.len()))
            };
            close_message.settle();
            // A peer that cannot be reached has failed.
            drop(sent);
        }
        for receive in &mut state.eager_receives {
            receive.cancel();
            receive.settle();
        }
        progress_sends(&mut state.eager_sends, &mut state.tickets);
        progress_transfers(&mut state.transfers, &mut state.tickets);
    }
}
