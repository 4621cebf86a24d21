//! Hands batches out in the order of their tasks, although they arrive in any order.
//!
//! Tickets number the tasks. There is one slot per ticket, from the first that has not been handed out; the number of
//! slots never exceeds the number of outstanding batches.

use super::worker::{FetchOutcome, Made};
use std::collections::VecDeque;

pub(super) struct Arrivals<B> {
    /// The ticket of the first slot.
    first: u64,
    slots: VecDeque<ArrivalSlot<B>>,
}

struct ArrivalSlot<B> {
    epoch: u64,
    /// Position of the epoch after this batch has been handed out.
    end: usize,
    holds: Holds<B>,
}

enum Holds<B> {
    Awaited,
    Arrived(FetchOutcome<B>),
    /// Number of batches handed out: one, or none if the task gave no batch.
    HandedOut(usize),
}

/// Progress of the epoch after slots have been released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retired {
    /// Position of the epoch.
    pub(super) end: usize,
    /// Number of batches in the slots.
    pub(super) batches: usize,
}

impl<B> Arrivals<B> {
    pub(super) fn new() -> Self {
        Arrivals { first: 0, slots: VecDeque::new() }
    }

    /// Returns the number of occupied slots.
    pub(super) fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Reserves a slot for a new task, and returns its ticket.
    pub(super) fn expect(&mut self, epoch: u64, end: usize) -> u64 {
        self.slots.push_back(ArrivalSlot { epoch, end, holds: Holds::Awaited });
        self.first + self.slots.len() as u64 - 1
    }

    /// Puts an arrived batch into its slot; a batch that is no longer expected is dropped.
    pub(super) fn put(&mut self, done: FetchOutcome<B>) {
        let slot = done.ticket.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize));
        if let Some(slot) = slot {
            slot.holds = Holds::Arrived(done);
        }
    }

    /// Returns true if no batch of an epoch is outstanding.
    pub(super) fn is_through(&self, epoch: u64) -> bool {
        self.slots.iter().all(|slot| slot.epoch != epoch)
    }

    /// Takes the next batch of an epoch: the first one, or with `in_order` false, the first that has arrived.
    pub(super) fn take(&mut self, epoch: u64, in_order: bool) -> Option<FetchOutcome<B>> {
        let candidates = if in_order { 1 } else { self.slots.len() };
        let of_epoch = self.slots.iter_mut().take(candidates).filter(|slot| slot.epoch == epoch);
        let found = of_epoch.into_iter().find(|slot| matches!(slot.holds, Holds::Arrived(_)))?;
        let Holds::Arrived(done) = std::mem::replace(&mut found.holds, Holds::Awaited) else { return None };
        found.holds = Holds::HandedOut(usize::from(matches!(done.made, Made::Batch(_))));
        Some(done)
    }

    /// Releases the leading slots whose batches have been handed out, if any.
    pub(super) fn retire(&mut self) -> Option<Retired> {
        let mut retired = None;
        while let Some(&ArrivalSlot { end, holds: Holds::HandedOut(batches), .. }) = self.slots.front() {
            let before = retired.map_or(0, |Retired { batches, .. }| batches);
            retired = Some(Retired { end, batches: before + batches });
            self.slots.pop_front();
            self.first += 1;
        }
        retired
    }

    /// Forgets all outstanding batches; the numbering of tickets continues.
    pub(super) fn clear(&mut self) {
        self.first += self.slots.len() as u64;
        self.slots.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(ticket: u64) -> FetchOutcome<u64> {
        FetchOutcome {
            ticket,
            generation: 0,
            epoch: 0,
            lane: 0,
            made: Made::Batch(ticket),
            samples: 1,
            skipped: 0,
        }
    }

    fn expecting(count: usize) -> Arrivals<u64> {
        let mut arrivals = Arrivals::new();
        (0..count).for_each(|at| assert_eq!(arrivals.expect(0, 10 * (at + 1)), at as u64));
        arrivals
    }

    #[test]
    fn what_arrives_early_waits_for_its_turn() {
        let mut arrivals = expecting(3);
        arrivals.put(done(2));
        arrivals.put(done(1));
        assert!(arrivals.take(0, true).is_none());
        arrivals.put(done(0));
        for ticket in 0..3 {
            assert_eq!(arrivals.take(0, true).unwrap().ticket, ticket);
            let end = 10 * (ticket as usize + 1);
            assert_eq!(arrivals.retire(), Some(Retired { end, batches: 1 }));
        }
        assert!(arrivals.is_through(0));
    }

    #[test]
    fn out_of_order_the_position_stays_before_what_is_missing() {
        let mut arrivals = expecting(3);
        arrivals.put(done(1));
        assert_eq!(arrivals.take(0, false).unwrap().ticket, 1);
        assert_eq!(arrivals.retire(), None);
        arrivals.put(FetchOutcome { made: Made::Exhausted, ..done(0) });
        assert_eq!(arrivals.take(0, false).unwrap().ticket, 0);
        assert_eq!(arrivals.retire(), Some(Retired { end: 20, batches: 1 }), "nothing came of the first");
        assert_eq!(arrivals.outstanding(), 1);
    }

    #[test]
    fn the_next_epoch_waits_and_forgotten_tickets_are_dropped() {
        let mut arrivals = expecting(1);
        let next = arrivals.expect(1, 10);
        arrivals.put(FetchOutcome { epoch: 1, ..done(next) });
        assert!(arrivals.take(0, true).is_none() && arrivals.take(0, false).is_none());
        arrivals.clear();
        arrivals.put(done(0));
        assert_eq!(arrivals.expect(0, 5), 2);
        assert!(arrivals.take(0, true).is_none());
    }
}
