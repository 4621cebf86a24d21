//! Endpoint of one rank of a simulated cluster: passes its messages to the wires, matches arrived messages with
//! receives and lands them.

use super::mailbox::BoxNumber;
use super::network::messages::{MessageContent, SimulatedMessage};
use super::operations::{EndpointOperations, OperationDirection};
use super::schedule::Simulator;
use crate::control::health::Health;
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use crate::transport::devices::Devices;
use crate::transport::matching::{Early, Match, Posted};
use crate::transport::{
    Bell, HEADER_BYTES, Label, ReceiveMode, Received, Source, Tally, Ticket, Traffic, Transport,
    TransportKind,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Bell of a rank: it ends the parks of all its threads.
pub(super) struct RankBell {
    pub(super) rank: usize,
    pub(super) schedule: Arc<Simulator>,
}

impl Bell for RankBell {
    fn ring(&self) {
        self.schedule.ring(self.rank);
    }
}

/// Counts of one endpoint, like those of a mixed world: messages within the host count as sent by shared memory.
pub(super) struct Tallies {
    within: Arc<Tally>,
    between: Arc<Tally>,
}

impl Tallies {
    pub(super) fn of(traffic: &Traffic) -> Self {
        Tallies { within: traffic.tally(TransportKind::Shm), between: traffic.tally(TransportKind::Sim) }
    }
}

/// Endpoint of one rank on one channel.
pub(super) struct SimEndpoint {
    pub(super) rank: usize,
    mailbox: BoxNumber,
    pub(super) bell: Arc<RankBell>,
    pub(super) health: Arc<Health>,
    tallies: Tallies,
    operations: RefCell<EndpointOperations>,
}

impl SimEndpoint {
    /// Creates the endpoint of the rank that has this bell.
    pub(super) fn new(channel: u16, bell: Arc<RankBell>, health: Arc<Health>, tallies: Tallies) -> Self {
        let mailbox = bell.schedule.open(channel, bell.rank);
        SimEndpoint { rank: bell.rank, mailbox, bell, health, tallies, operations: RefCell::default() }
    }

    /// Returns the tally of messages to a rank.
    fn tally(&self, to: usize) -> &Tally {
        let peers = self.health.peers();
        if peers[to].host == peers[self.rank].host { &self.tallies.within } else { &self.tallies.between }
    }

    fn schedule(&self) -> &Simulator {
        &self.bell.schedule
    }

    /// Lands a message in its receive.
    fn deliver(&self, operations: &mut EndpointOperations, message: SimulatedMessage, posted: Posted) {
        let ticket = posted.ticket();
        self.schedule().receive(message.bytes);
        let outcome = match &message.content {
            MessageContent::View(view) if view.is_on_host() => {
                posted.land(message.from, view.bytes(), &self.health)
            }
            MessageContent::Bytes(bytes) => posted.land(message.from, bytes, &self.health),
            MessageContent::View(_)
            | MessageContent::Size
            | MessageContent::Void
            | MessageContent::End
            | MessageContent::Datagram(_) => posted.land_size(message.from, message.bytes, &self.health),
        };
        operations.finish(ticket, outcome);
    }

    /// Matches a message that has arrived with the receives that are posted.
    fn arrive(&self, operations: &mut EndpointOperations, message: SimulatedMessage) {
        match operations.matcher.find_posted(message.from, &message.label) {
            Match::Found(posted) => self.deliver(operations, message, posted),
            Match::Conflict(posted, _) => self.disagree(operations, &posted, &message),
            Match::Nothing => {
                let from = message.from;
                let label = message.label;
                operations.matcher.keep_early(Early { from, label, message });
            }
        }
    }

    /// Fails a receive whose peer performs a different operation.
    fn disagree(&self, operations: &mut EndpointOperations, posted: &Posted, message: &SimulatedMessage) {
        let error = posted.mismatch(message.from, message.label.fingerprint, &self.health);
        operations.finish(posted.ticket(), Err(error));
    }
}

impl Transport for SimEndpoint {
    fn kind(&self) -> TransportKind {
        TransportKind::Sim
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.bell) as Arc<dyn Bell>
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let operations = &mut *self.operations.borrow_mut();
        let ticket = operations.open(OperationDirection::Send);
        let bytes = view.byte_len();
        self.tally(to).sent(HEADER_BYTES + bytes);
        let content = MessageContent::View(view);
        let message = SimulatedMessage { from: self.rank, label, bytes, content, ticket: Some(ticket) };
        self.schedule().send(self.mailbox, to, message);
        ticket
    }

    fn post_recv(&self, source: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        let operations = &mut *self.operations.borrow_mut();
        let ticket = operations.open(OperationDirection::Receive);
        let posted = Posted::new(ticket, source, label, view, land);
        match operations.matcher.find_early(source, &label) {
            Match::Found(early) => self.deliver(operations, early.message, posted),
            Match::Conflict(early, _) => self.disagree(operations, &posted, &early.message),
            Match::Nothing => operations.matcher.keep_posted(posted),
        }
        ticket
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Received>> {
        let operations = &mut *self.operations.borrow_mut();
        let outcome = operations.tickets.poll(ticket);
        if outcome.is_pending() && operations.wait(ticket) {
            self.schedule().await_sent(self.mailbox, ticket);
        }
        outcome
    }

    fn cancel(&self, ticket: Ticket) {
        let operations = &mut *self.operations.borrow_mut();
        operations.matcher.cancel(ticket);
        operations.tickets.close(ticket);
        self.schedule().cancel(self.mailbox, ticket);
    }

    fn progress(&self) -> bool {
        let operations = &mut *self.operations.borrow_mut();
        let mut mail = std::mem::take(&mut operations.mail);
        let has_mail = self.schedule().take_mail(self.mailbox, &mut mail);
        for (ticket, got) in mail.sent.drain(..) {
            operations.finish(ticket, Ok(got));
        }
        mail.arrived.drain(..).for_each(|message| self.arrive(operations, message));
        operations.mail = mail;
        has_mail
    }

    fn crowded(&self) -> bool {
        false
    }

    fn park(&self, at_most: Duration) {
        crate::runtime::sleep(at_most);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        let nothing_comes = || !self.schedule().is_awaited(self.mailbox, peer) && !self.progress();
        if self.schedule().is_closed(peer, self.rank) && nothing_comes() {
            return Some("closed its connection".to_owned());
        }
        (self.health.has_left(peer) && nothing_comes()).then(|| "finished".to_owned())
    }

    fn moved(&self, _: Ticket) -> u64 {
        // A message lands as a whole, and its operation is done.
        0
    }

    fn take_ready(&self, ready: &mut Vec<usize>) -> bool {
        let rings = self.schedule().rings(self.rank);
        self.operations.borrow_mut().take_ready(rings, ready)
    }

    fn devices(&self) -> Option<&dyn Devices> {
        Some(self)
    }
}

/// Simulated memory has no path between devices to negotiate.
impl Devices for SimEndpoint {}
