//! Order of the work of all ranks: by stamps, so that no two GPUs wait for each other in a circle.
//!
//! NCCL's work on a stream runs in the order in which it was enqueued, and a message or a collective holds its stream
//! until all its ranks have come to it. So all ranks have to enqueue what they share in one order. Ranks that take part
//! in an item agree on its stamp: each *proposes* a time that is later than all it has settled, and the latest proposal
//! is the stamp. An item is enqueued once no other can get a lower stamp: once its own stamp is lower than whatever this
//! rank has proposed and not settled (Skeen's algorithm). A rank proposes only when it knows that all others have come,
//! so that what is not settled waits for nothing but messages between hosts.
//!
//! Items that follow each other here may be enqueued as one group: of those that are not done anywhere, the one with the
//! lowest stamp has been reached by all its ranks, and goes on.
//!
//! All endpoints of a process on one GPU share the order, and what one enqueues waits for what another has enqueued
//! before: kernels of two communicators could wait for each other's place on their GPUs otherwise.

use crate::device::Event;
use crate::doorbell::Bell;
use crate::tickets::Ticket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Identity of an item, equal on all its ranks, and on no other item.
pub(super) type Identity = [u64; 4];

/// Place of an item in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    time: u64,
    identity: Identity,
}

/// An item that has been proposed or settled, and not been enqueued.
struct Turn {
    stamp: Stamp,
    /// Number of the endpoint.
    owner: u64,
    /// Operation of the endpoint, once the stamp is settled.
    settled: Option<Ticket>,
}

/// Items of all endpoints of a GPU.
#[derive(Default)]
struct Line {
    /// The latest time that was proposed or settled here.
    clock: u64,
    turns: Vec<Turn>,
    /// Endpoint that is enqueuing.
    busy: Option<u64>,
    /// Event after what was enqueued last, and whose that was.
    last: Option<(u64, Arc<dyn Event>)>,
    owners: Vec<(u64, Weak<dyn Bell>)>,
    last_owner: u64,
}

impl Line {
    fn first(&self) -> Option<usize> {
        (0..self.turns.len()).min_by_key(|at| self.turns[*at].stamp)
    }

    fn settle(&mut self, stamp: Stamp, owner: u64, ticket: Ticket) {
        self.turns.retain(|turn| turn.stamp.identity != stamp.identity);
        self.clock = self.clock.max(stamp.time);
        self.turns.push(Turn { stamp, owner, settled: Some(ticket) });
    }

    /// Wakes the endpoint whose turn it is, unless that is the one that asks.
    fn wake(&self, but: u64) {
        let Some(first) = self.first().map(|at| &self.turns[at]) else { return };
        if first.owner == but || first.settled.is_none() || self.busy.is_some() {
            return;
        }
        let bell = self.owners.iter().find(|(owner, _)| *owner == first.owner);
        if let Some(bell) = bell.and_then(|(_, bell)| bell.upgrade()) {
            bell.ring();
        }
    }
}

/// Order of the work of one GPU.
pub(super) struct WorkOrder {
    pub(super) device: String,
    line: Mutex<Line>,
}

impl WorkOrder {
    /// Returns the order of a device, which all that ask for it share as long as one of them has it.
    pub(super) fn of(device: &str) -> Arc<Self> {
        static USED: Mutex<Vec<Weak<WorkOrder>>> = Mutex::new(Vec::new());
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|order| order.strong_count() > 0);
        if let Some(found) = used.iter().filter_map(Weak::upgrade).find(|order| order.device == device) {
            return found;
        }
        let order = Arc::new(WorkOrder { device: device.to_owned(), line: Mutex::default() });
        used.push(Arc::downgrade(&order));
        order
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an endpoint in, whose bell rings when its turn comes, and returns its number.
    pub(super) fn enter(&self, bell: &Arc<dyn Bell>) -> u64 {
        let mut line = self.line();
        line.last_owner += 1;
        let owner = line.last_owner;
        line.owners.push((owner, Arc::downgrade(bell)));
        owner
    }

    /// Forgets an endpoint and all that it has proposed or settled.
    pub(super) fn leave(&self, owner: u64) {
        let mut line = self.line();
        line.turns.retain(|turn| turn.owner != owner);
        line.owners.retain(|(other, _)| *other != owner);
        line.busy = line.busy.filter(|busy| *busy != owner);
        line.last = line.last.take().filter(|(last, _)| *last != owner);
        line.wake(owner);
    }

    /// Proposes a time for an item. Nothing later is enqueued before the item is settled or withdrawn.
    pub(super) fn propose(&self, identity: Identity, owner: u64) -> u64 {
        let mut line = self.line();
        line.clock += 1;
        let time = line.clock;
        line.turns.push(Turn { stamp: Stamp { time, identity }, owner, settled: None });
        time
    }

    /// Settles an item for which all others have proposed `latest` at most, and this rank proposes at once; returns its
    /// time.
    pub(super) fn decide(&self, latest: u64, identity: Identity, owner: u64, ticket: Ticket) -> u64 {
        let mut line = self.line();
        let time = latest.max(line.clock + 1);
        line.settle(Stamp { time, identity }, owner, ticket);
        time
    }

    /// Settles an item at the latest of all its proposals.
    pub(super) fn settle(&self, time: u64, identity: Identity, owner: u64, ticket: Ticket) {
        let mut line = self.line();
        line.settle(Stamp { time, identity }, owner, ticket);
        line.wake(owner);
    }

    /// Gives an item up.
    pub(super) fn withdraw(&self, identity: Identity) {
        let mut line = self.line();
        line.turns.retain(|turn| turn.stamp.identity != identity);
        line.wake(0);
    }

    /// Takes the next item to enqueue, if it is one of `owner` that `wanted` accepts. From then on it is the turn of
    /// nobody else, until [`WorkOrder::done`].
    pub(super) fn next(&self, owner: u64, wanted: impl FnOnce(Ticket) -> bool) -> Option<Ticket> {
        let mut line = self.line();
        if line.busy.is_some_and(|busy| busy != owner) {
            return None;
        }
        let at = line.first()?;
        let ticket = line.turns[at].settled.filter(|_| line.turns[at].owner == owner)?;
        if !wanted(ticket) {
            return None;
        }
        line.turns.swap_remove(at);
        line.busy = Some(owner);
        Some(ticket)
    }

    /// Returns the event after what another endpoint has enqueued last, for which this one's work has to wait.
    pub(super) fn last_of_others(&self, owner: u64) -> Option<Arc<dyn Event>> {
        let line = self.line();
        line.last.as_ref().filter(|(other, _)| *other != owner).map(|(_, event)| Arc::clone(event))
    }

    /// Ends the turn of an endpoint, whose items are enqueued up to an event.
    pub(super) fn done(&self, owner: u64, event: Option<Arc<dyn Event>>) {
        let mut line = self.line();
        line.last = event.map(|event| (owner, event)).or(line.last.take());
        line.busy = line.busy.filter(|busy| *busy != owner);
        line.wake(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarm::Alarm;
    use std::time::Duration;

    const A: Identity = [0, 1, 0, 0];
    const B: Identity = [0, 2, 0, 0];

    fn order() -> (WorkOrder, u64) {
        let order = WorkOrder { device: String::new(), line: Mutex::default() };
        let alarm: Arc<dyn Bell> = Arc::new(Alarm::default());
        let owner = order.enter(&alarm);
        (order, owner)
    }

    fn ticket(index: u32) -> Ticket {
        Ticket { index, generation: 0 }
    }

    fn all(order: &WorkOrder, owner: u64) -> Vec<u32> {
        let taken = std::iter::from_fn(|| order.next(owner, |_| true)).map(|ticket| ticket.index).collect();
        order.done(owner, None);
        taken
    }

    #[test]
    fn nothing_passes_what_may_come_before_it() {
        let (order, owner) = order();
        assert_eq!(order.propose(A, owner), 1);
        assert_eq!(order.decide(0, B, owner, ticket(2)), 2);
        assert!(all(&order, owner).is_empty(), "what was proposed at 1 may stay at 1");
        order.settle(3, A, owner, ticket(1));
        assert_eq!(all(&order, owner), [2, 1]);
        assert_eq!(order.propose(B, owner), 4);
        assert_eq!(order.decide(9, A, owner, ticket(3)), 9);
        order.withdraw(B);
        assert_eq!(all(&order, owner), [3]);
    }

    #[test]
    fn equal_times_go_by_identity() {
        let (order, owner) = order();
        order.settle(7, B, owner, ticket(2));
        order.settle(7, A, owner, ticket(1));
        assert_eq!(all(&order, owner), [1, 2]);
        assert_eq!(order.propose(B, owner), 8);
    }

    #[test]
    fn endpoints_of_a_device_wait_for_each_other_and_are_woken() {
        let (order, first) = order();
        let alarm = Arc::new(Alarm::default());
        let bell: Arc<dyn Bell> = Arc::clone(&alarm) as _;
        let second = order.enter(&bell);
        order.settle(1, A, first, ticket(1));
        order.settle(2, B, second, ticket(2));
        assert!(order.next(second, |_| true).is_none(), "the first one's item comes before");
        assert_eq!(order.next(first, |_| true), Some(ticket(1)));
        assert!(order.next(second, |_| true).is_none(), "the first one is enqueuing");
        order.done(first, None);
        assert!(alarm.wait(Duration::ZERO));
        assert_eq!(order.next(second, |_| true), Some(ticket(2)));
        order.leave(second);
        order.settle(3, A, first, ticket(3));
        assert_eq!(all(&order, first), [3]);
    }
}
