//! Operations of one endpoint of a simulated cluster: those in progress, and the futures that wait for them.

use super::mailbox::DeliveredMail;
use super::network::messages::SimulatedMessage;
use crate::error::Result;
use crate::transport::matching::Matcher;
use crate::transport::tickets::Tickets;
use crate::transport::{Received, Ticket};
use crate::waiting::drive;
use std::mem;

/// Kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperationDirection {
    Send,
    Receive,
}

/// Future that waits for an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Waiter {
    #[default]
    Nobody,
    /// A future without a number.
    Unknown,
    Number(usize),
}

/// Operation under a ticket.
#[derive(Debug, Clone, Copy)]
struct AwaitedOperation {
    generation: u32,
    kind: OperationDirection,
    waiter: Waiter,
}

/// Operations of one endpoint.
#[derive(Default)]
pub(super) struct EndpointOperations {
    pub(super) tickets: Tickets,
    pub(super) matcher: Matcher<SimulatedMessage>,
    /// Scratch: mail that has been processed.
    pub(super) mail: DeliveredMail,
    /// By index of the ticket.
    waits: Vec<Option<AwaitedOperation>>,
    /// Futures whose operations have ended.
    ready: Vec<usize>,
    /// True if an operation has ended whose future has no number.
    has_unknown: bool,
    /// Number of rings of the rank's bell that have been seen.
    rings: u64,
}

impl EndpointOperations {
    /// Creates a ticket.
    pub(super) fn open(&mut self, kind: OperationDirection) -> Ticket {
        let ticket = self.tickets.open();
        let index = ticket.index as usize;
        self.waits.resize(self.waits.len().max(index + 1), None);
        self.waits[index] =
            Some(AwaitedOperation { generation: ticket.generation, kind, waiter: Waiter::Nobody });
        ticket
    }

    fn wait_of(&mut self, ticket: Ticket) -> Option<&mut AwaitedOperation> {
        let wait = self.waits.get_mut(ticket.index as usize)?.as_mut();
        wait.filter(|wait| wait.generation == ticket.generation)
    }

    /// Records that the polled future waits for an operation. Returns true if that is a send, and no future has
    /// waited for it before.
    pub(super) fn wait(&mut self, ticket: Ticket) -> bool {
        let waiter = drive::number().map_or(Waiter::Unknown, Waiter::Number);
        let Some(wait) = self.wait_of(ticket) else { return false };
        mem::replace(&mut wait.waiter, waiter) == Waiter::Nobody && wait.kind == OperationDirection::Send
    }

    /// Records an outcome, for the future that waits for it.
    pub(super) fn finish(&mut self, ticket: Ticket, outcome: Result<Received>) {
        match self.wait_of(ticket).map(|wait| wait.waiter) {
            Some(Waiter::Number(number)) => self.ready.push(number),
            Some(Waiter::Unknown) => self.has_unknown = true,
            Some(Waiter::Nobody) | None => {}
        }
        self.tickets.finish(ticket, outcome);
    }

    /// Adds the futures whose operations have ended since the last call. Returns true if no other future can make progress,
    /// given the number of rings of the rank's bell.
    pub(super) fn take_ready(&mut self, rings: u64, ready: &mut Vec<usize>) -> bool {
        ready.append(&mut self.ready);
        let has_rung = mem::replace(&mut self.rings, rings) != rings;
        !(mem::take(&mut self.has_unknown) || has_rung)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOT: Received = Received { peer: 0, bytes: 1 };

    /// Returns the ready futures, and true if no other future can make progress.
    fn ready(operations: &mut EndpointOperations, rings: u64) -> (bool, Vec<usize>) {
        let mut ready = Vec::new();
        (operations.take_ready(rings, &mut ready), ready)
    }

    #[test]
    fn those_are_ready_that_wait_for_what_has_ended() {
        let mut operations = EndpointOperations::default();
        let send = operations.open(OperationDirection::Send);
        let receive = operations.open(OperationDirection::Receive);
        operations.finish(send, Ok(GOT));
        assert_eq!(ready(&mut operations, 0), (true, vec![]), "nobody waits for it");
        assert!(!drive::numbered(7, || operations.wait(receive)), "only sends are waited for elsewhere");
        operations.finish(receive, Ok(GOT));
        assert_eq!(ready(&mut operations, 0), (true, vec![7]));
        assert_eq!(ready(&mut operations, 1), (false, vec![]), "the bell has rung");
        let send = operations.open(OperationDirection::Send);
        assert!(operations.wait(send));
        assert!(!operations.wait(send), "it is known already");
        operations.finish(send, Ok(GOT));
        assert_eq!(ready(&mut operations, 1), (false, vec![]), "nobody knows for whom it is");
    }

    #[test]
    fn what_was_cancelled_is_nobodys() {
        let mut operations = EndpointOperations::default();
        let old = operations.open(OperationDirection::Receive);
        drive::numbered(3, || operations.wait(old));
        operations.tickets.close(old);
        let new = operations.open(OperationDirection::Receive);
        assert_eq!(new.index, old.index);
        drive::numbered(4, || operations.wait(new));
        operations.finish(old, Ok(GOT));
        assert_eq!(ready(&mut operations, 0), (true, vec![]));
    }
}
