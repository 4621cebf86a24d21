//! Endpoint of one rank among threads: takes messages from its mailbox, matches them with receives and lands them.

use super::link::{ThreadMailbox, ThreadMessage};
use crate::control::health::Health;
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use crate::transport::matching::{Early, Match, Matcher, Posted};
use crate::transport::tickets::Tickets;
use crate::transport::{
    Bell, HEADER_BYTES, Label, ReceiveMode, Received, SharedMemory, SharedPages, Source, Tally, Ticket,
    Transport, TransportKind,
};
use crate::waiting::spin_budget::crowded;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Send whose message the receiver has not read yet.
struct PendingSend {
    ticket: Ticket,
    to: usize,
    bytes: usize,
    message: Arc<ThreadMessage>,
}

/// Operations of one endpoint.
#[derive(Default)]
struct ThreadState {
    tickets: Tickets,
    matcher: Matcher<Arc<ThreadMessage>>,
    sending: Vec<PendingSend>,
}

/// Endpoint of one rank of a world of threads.
pub(super) struct ThreadEndpoint {
    pub(super) rank: usize,
    pub(super) mailboxes: Vec<Arc<ThreadMailbox>>,
    pub(super) health: Arc<Health>,
    tally: Arc<Tally>,
    /// True if ranks outnumber cores: see [`Transport::crowded`].
    crowded: bool,
    state: RefCell<ThreadState>,
}

impl ThreadEndpoint {
    /// Creates the endpoint of `rank`, and has failures of other ranks ring its bell.
    pub(super) fn new(
        rank: usize,
        mailboxes: Vec<Arc<ThreadMailbox>>,
        health: Arc<Health>,
        tally: Arc<Tally>,
    ) -> Self {
        let bell: Arc<dyn Bell> = mailboxes[rank].clone();
        health.wake(Arc::downgrade(&bell));
        let crowded = crowded(mailboxes.len());
        ThreadEndpoint { rank, mailboxes, health, tally, crowded, state: RefCell::default() }
    }

    /// Lands a message in its receive, unless its sender has cancelled.
    fn deliver(&self, state: &mut ThreadState, message: &ThreadMessage, posted: Posted) {
        let Some(view) = message.take() else {
            return state.matcher.keep_posted(posted);
        };
        let ticket = posted.ticket();
        let outcome = posted.land(message.from, view.bytes(), &self.health);
        drop(view);
        message.set_delivered();
        self.mailboxes[message.from].ring();
        state.tickets.finish(ticket, outcome);
    }

    /// Matches a message that has arrived with the receives that are posted.
    fn arrive(&self, state: &mut ThreadState, message: Arc<ThreadMessage>) {
        match state.matcher.find_posted(message.from, &message.label) {
            Match::Found(posted) => self.deliver(state, &message, posted),
            Match::Conflict(posted, _) => self.disagree(state, posted, &message),
            Match::Nothing => {
                let from = message.from;
                let label = message.label;
                state.matcher.keep_early(Early { from, label, message });
            }
        }
    }

    /// Fails a receive whose peer performs a different operation.
    fn disagree(&self, state: &mut ThreadState, posted: Posted, message: &ThreadMessage) {
        let error = posted.mismatch(message.from, message.label.fingerprint, &self.health);
        state.tickets.finish(posted.ticket(), Err(error));
    }

    /// Completes the sends whose messages were read. Returns true if there were any.
    fn finish_delivered_sends(&self, state: &mut ThreadState) -> bool {
        let ThreadState { tickets, sending, .. } = state;
        let before = sending.len();
        sending.retain(|send| {
            let delivered = send.message.is_delivered();
            if delivered {
                tickets.finish(send.ticket, Ok(Received { peer: send.to, bytes: send.bytes }));
            }
            !delivered
        });
        sending.len() < before
    }
}

impl Transport for ThreadEndpoint {
    fn kind(&self) -> TransportKind {
        TransportKind::Thread
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        self.mailboxes[self.rank].clone()
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let mut state = self.state.borrow_mut();
        let ticket = state.tickets.open();
        let bytes = view.byte_len();
        // Headers are counted although nothing is framed here, so that counts agree between transports.
        self.tally.sent(HEADER_BYTES + bytes);
        let message = ThreadMessage::new(self.rank, label, view);
        state.sending.push(PendingSend { ticket, to, bytes, message: Arc::clone(&message) });
        self.mailboxes[to].put(message);
        ticket
    }

    fn post_recv(&self, source: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let posted = Posted::new(ticket, source, label, view, land);
        match state.matcher.find_early(source, &label) {
            Match::Found(early) => self.deliver(state, &early.message, posted),
            Match::Conflict(early, _) => self.disagree(state, posted, &early.message),
            Match::Nothing => state.matcher.keep_posted(posted),
        }
        ticket
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Received>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        state.matcher.cancel(ticket);
        state.sending.retain(|send| {
            let ours = send.ticket == ticket;
            if ours {
                // If the receiver was quicker, it has the view and will drop it after its copy.
                drop(send.message.take());
            }
            !ours
        });
        state.tickets.close(ticket);
    }

    fn progress(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        let messages = self.mailboxes[self.rank].take_all();
        let arrived = !messages.is_empty();
        messages.into_iter().for_each(|message| self.arrive(state, message));
        self.finish_delivered_sends(state) || arrived
    }

    fn crowded(&self) -> bool {
        self.crowded
    }

    fn park(&self, at_most: Duration) {
        self.mailboxes[self.rank].park(at_most);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        // A message put before leaving was put before `left` was set, so one more check finds it.
        let ended = self.health.has_left(peer) && !self.progress();
        ended.then(|| "finished".to_owned())
    }

    fn moved(&self, _: Ticket) -> u64 {
        // A message is copied in one go, and its operation is done.
        0
    }

    fn shared_memory(&self) -> Option<&dyn SharedMemory> {
        Some(self)
    }
}

impl SharedMemory for ThreadEndpoint {
    fn share_pages(&self, _limit: Duration) -> Result<SharedPages> {
        let keeper: Vec<_> = self.mailboxes.iter().map(|mailbox| mailbox.page()).collect();
        let pages = keeper.iter().map(|page| page.address()).collect();
        Ok(SharedPages { pages, keeper: Arc::new(keeper) })
    }
}
