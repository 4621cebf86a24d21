//! The table of operations in flight that every backend keeps: who waits for what, and with which outcome.

use crate::error::Result;
use crate::transport::{Got, Ticket};
use std::task::Poll;

enum State {
    Free,
    /// With the bytes that have moved so far.
    Pending(u64),
    Done(Result<Got>),
}

struct Slot {
    generation: u32,
    state: State,
}

/// Operations of one endpoint. Slots are reused; a generation tells a ticket from its slot's next tenant.
#[derive(Default)]
pub(crate) struct Tickets {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Tickets {
    pub(crate) fn open(&mut self) -> Ticket {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.state = State::Pending(0);
            return Ticket { index, generation: slot.generation };
        }
        self.slots.push(Slot { generation: 0, state: State::Pending(0) });
        Ticket { index: (self.slots.len() - 1) as u32, generation: 0 }
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        self.slots.get_mut(ticket.index as usize).filter(|slot| slot.generation == ticket.generation)
    }

    /// Records an outcome; a cancelled ticket has none to record.
    pub(crate) fn finish(&mut self, ticket: Ticket, outcome: Result<Got>) {
        if let Some(slot) = self.slot(ticket) {
            slot.state = State::Done(outcome);
        }
    }

    /// Counts bytes that have moved for a pending operation.
    pub(crate) fn advance(&mut self, ticket: Ticket, bytes: usize) {
        if let Some(Slot { state: State::Pending(moved), .. }) = self.slot(ticket) {
            *moved += bytes as u64;
        }
    }

    pub(crate) fn moved(&mut self, ticket: Ticket) -> u64 {
        match self.slot(ticket) {
            Some(Slot { state: State::Pending(moved), .. }) => *moved,
            _ => 0,
        }
    }

    /// Takes the outcome, once. A void ticket stays pending for ever, like an operation that nobody answers.
    pub(crate) fn poll(&mut self, ticket: Ticket) -> Poll<Result<Got>> {
        match self.slot(ticket) {
            Some(Slot { state: state @ State::Done(_), .. }) => {
                let State::Done(outcome) = std::mem::replace(state, State::Free) else {
                    return Poll::Pending;
                };
                self.close(ticket);
                Poll::Ready(outcome)
            }
            _ => Poll::Pending,
        }
    }

    pub(crate) fn close(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slot(ticket) {
            slot.state = State::Free;
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(ticket.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOT: Got = Got { peer: 3, bytes: 8 };

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
    fn a_late_outcome_does_not_reach_the_next_tenant() {
        let mut tickets = Tickets::default();
        let old = tickets.open();
        tickets.close(old);
        let new = tickets.open();
        assert_eq!(new.index, old.index);
        tickets.finish(old, Ok(GOT));
        assert!(tickets.poll(new).is_pending());
    }
}
