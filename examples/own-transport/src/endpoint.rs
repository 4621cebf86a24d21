//! One rank's end of a channel: it matches the messages in its inbox with receives, and delivers them.

use crate::inbox::{Inbox, Message};
use hexagram::physical::health::Health;
use hexagram::physical::memory::{ReadView, WriteView};
use hexagram::physical::transport::{
    Bell, Early, HEADER_BYTES, Label, Match, Matcher, Membership, Posted, ReceiveMode, Received, Source,
    Tally, Ticket, Tickets, Transport, TransportKind,
};
use hexagram::{Error, Result};
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Operations in progress.
#[derive(Default)]
struct Operations {
    tickets: Tickets,
    matcher: Matcher<Vec<u8>>,
}

/// One rank's end of a channel.
pub(crate) struct Endpoint {
    kind: TransportKind,
    rank: usize,
    health: Arc<Health>,
    tally: Arc<Tally>,
    is_crowded: bool,
    inbox: Arc<Inbox>,
    /// Inboxes of all ranks, by rank, including its own.
    peers: Vec<Arc<Inbox>>,
    operations: RefCell<Operations>,
}

impl Endpoint {
    /// Creates the end of a channel. Its messages arrive in `inbox`; it sends to the inboxes of `peers`.
    pub(crate) fn new(
        member: &Membership,
        kind: TransportKind,
        inbox: Arc<Inbox>,
        peers: Vec<Arc<Inbox>>,
    ) -> Self {
        let health = Arc::clone(member.health());
        // A failure elsewhere ends this rank's sleep.
        let bell: Arc<dyn Bell> = Arc::clone(&inbox) as Arc<dyn Bell>;
        health.wake(Arc::downgrade(&bell));
        let tally = member.traffic().tally(kind);
        let rank = member.rank();
        let is_crowded = member.is_crowded();
        Endpoint { kind, rank, health, tally, is_crowded, inbox, peers, operations: RefCell::default() }
    }

    /// Ends a receive with a message from rank `from`.
    fn land(&self, tickets: &mut Tickets, posted: Posted, from: usize, bytes: &[u8]) {
        let ticket = posted.ticket();
        let outcome = posted.land(from, bytes, &self.health);
        tickets.finish(ticket, outcome);
    }

    /// Gives a message to the receive that waits for it, or keeps it.
    fn arrive(&self, operations: &mut Operations, message: Message) {
        let Message { from, label, bytes } = message;
        let Operations { tickets, matcher } = operations;
        match matcher.find_posted(from, &label) {
            Match::Found(posted) => self.land(tickets, posted, from, &bytes),
            Match::Conflict(posted, theirs) => {
                tickets.finish(posted.ticket(), Err(posted.mismatch(from, theirs, &self.health)));
            }
            Match::Nothing => matcher.keep_early(Early { from, label, message: bytes }),
        }
    }
}

impl Transport for Endpoint {
    fn kind(&self) -> TransportKind {
        self.kind
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.inbox) as Arc<dyn Bell>
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let tickets = &mut self.operations.borrow_mut().tickets;
        let ticket = tickets.open();
        let Some(bytes) = view.host_bytes() else {
            let error = Error::usage("loopback reads host memory only", "send from a host buffer");
            tickets.finish(ticket, Err(error));
            return ticket;
        };
        self.tally.sent(HEADER_BYTES + bytes.len());
        self.peers[to].put(Message { from: self.rank, label, bytes: bytes.to_vec() });
        tickets.finish(ticket, Ok(Received { peer: to, bytes: bytes.len() }));
        ticket
    }

    fn post_recv(&self, source: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        let Operations { tickets, matcher } = &mut *self.operations.borrow_mut();
        let ticket = tickets.open();
        let posted = Posted::new(ticket, source, label, view, land);
        match matcher.find_early(source, &label) {
            Match::Found(early) => self.land(tickets, posted, early.from, &early.message),
            Match::Conflict(early, theirs) => {
                tickets.finish(ticket, Err(posted.mismatch(early.from, theirs, &self.health)));
            }
            Match::Nothing => matcher.keep_posted(posted),
        }
        ticket
    }

    fn poll(&self, ticket: Ticket, _context: &mut Context<'_>) -> Poll<Result<Received>> {
        self.operations.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let operations = &mut *self.operations.borrow_mut();
        operations.matcher.cancel(ticket);
        operations.tickets.close(ticket);
    }

    fn progress(&self) -> bool {
        let operations = &mut *self.operations.borrow_mut();
        let messages = self.inbox.take();
        let has_moved = !messages.is_empty();
        messages.into_iter().for_each(|message| self.arrive(operations, message));
        has_moved
    }

    fn crowded(&self) -> bool {
        self.is_crowded
    }

    fn park(&self, at_most: Duration) {
        self.inbox.sleep(at_most);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        // Messages sent before a rank left are in the inbox once it has left: one more check finds them.
        let has_ended = self.health.has_left(peer) && !self.progress();
        has_ended.then(|| "finished".to_owned())
    }

    fn moved(&self, _ticket: Ticket) -> u64 {
        // A message is copied in one go, and its operation is done.
        0
    }
}
