//! The table of operations in flight of every backend: the operation of each ticket, and its outcome.

use super::message::Received;
use crate::error::Result;
use std::task::Poll;

/// Names an operation that was posted and has not been taken by a successful poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

enum TicketState {
    Free,
    /// In progress, with the bytes that have moved so far.
    Pending(u64),
    Done(Result<Received>),
}

struct TicketSlot {
    generation: u32,
    stand: TicketState,
}

/// Operations of one endpoint. Slots are reused; a generation distinguishes a ticket from the next one in its slot.
///
/// ```
/// use hexagram_physical::transport::{Received, Tickets};
///
/// let mut tickets = Tickets::default();
/// let ticket = tickets.open();
/// assert!(tickets.poll(ticket).is_pending());
/// tickets.finish(ticket, Ok(Received { peer: 1, bytes: 8 }));
/// assert!(tickets.poll(ticket).is_ready());
/// ```
#[derive(Default)]
pub struct Tickets {
    slots: Vec<TicketSlot>,
    free: Vec<u32>,
}

impl Tickets {
    /// Creates a ticket for an operation that begins.
    pub fn open(&mut self) -> Ticket {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.stand = TicketState::Pending(0);
            return Ticket { index, generation: slot.generation };
        }
        self.slots.push(TicketSlot { generation: 0, stand: TicketState::Pending(0) });
        Ticket { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut TicketSlot> {
        self.slots.get_mut(ticket.index as usize).filter(|slot| slot.generation == ticket.generation)
    }

    /// Records an outcome; a cancelled ticket has none to record.
    pub fn finish(&mut self, ticket: Ticket, outcome: Result<Received>) {
        if let Some(slot) = self.slot(ticket) {
            slot.stand = TicketState::Done(outcome);
        }
    }

    /// Counts bytes that have moved for a pending operation.
    pub fn advance(&mut self, ticket: Ticket, bytes: usize) {
        if let Some(TicketSlot { stand: TicketState::Pending(moved), .. }) = self.slot(ticket) {
            *moved += bytes as u64;
        }
    }

    /// Returns the bytes that have moved for a pending operation.
    pub fn moved(&mut self, ticket: Ticket) -> u64 {
        match self.slot(ticket) {
            Some(TicketSlot { stand: TicketState::Pending(moved), .. }) => *moved,
            _ => 0,
        }
    }

    /// Takes the outcome, once. A void ticket stays pending forever, like an unanswered operation.
    pub fn poll(&mut self, ticket: Ticket) -> Poll<Result<Received>> {
        match self.slot(ticket) {
            Some(TicketSlot { stand: stand @ TicketState::Done(_), .. }) => {
                let TicketState::Done(outcome) = std::mem::replace(stand, TicketState::Free) else {
                    return Poll::Pending;
                };
                self.close(ticket);
                Poll::Ready(outcome)
            }
            _ => Poll::Pending,
        }
    }

    /// Closes a ticket whose operation was cancelled, or whose outcome was taken.
    pub fn close(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slot(ticket) {
            slot.stand = TicketState::Free;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(ticket.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOT: Received = Received { peer: 3, bytes: 8 };

    #[test]
    fn an_outcome_is_taken_once() {
        let mut tickets = Tickets::default();
        let ticket = tickets.open();
        assert!(tickets.poll(ticket).is_pending());
        tickets.finish(ticket, Ok(GOT));
        assert!(matches!(tickets.poll(ticket), Poll::Ready(Ok(GOT))));
        assert!(tickets.poll(ticket).is_pending());
    }

    #[test]
    fn a_late_outcome_does_not_reach_the_next_in_the_slot() {
        let mut tickets = Tickets::default();
        let old = tickets.open();
        tickets.close(old);
        let new = tickets.open();
        assert_eq!(new.index, old.index);
        tickets.finish(old, Ok(GOT));
        assert!(tickets.poll(new).is_pending());
    }
}
