//! Order of the operations of all endpoints of a rank: one after another, the same on all ranks.
//!
//! A stream that waits for another rank's step delays all work that is enqueued after it, even that of other endpoints: streams
//! may be shared, and wait for each other. So rank 0 gives a number to every collective that all ranks have reached, counted
//! over all endpoints of the world, and each rank enqueues in the order of these numbers. Then each stream waits for
//! collectives of lower numbers only.
//!
//! A message has no number. The stream of the receiver waits for work that the sender has already enqueued, possibly after a
//! collective. So the receiver enqueues that collective first.

use crate::control::health::Health;
use crate::waiting::doorbell::Bell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Numbers of operations.
#[derive(Default)]
struct OperationNumbers {
    /// The number that the next operation gets, on rank 0.
    free: u64,
    /// Number of the operation that is enqueued next, or now.
    next: u64,
    /// One more than the highest number whose enqueuing has begun.
    begun: u64,
    /// Higher numbers whose operations will never be enqueued.
    skipped: BTreeSet<u64>,
    /// Bells, and the numbers whose turn they wait for.
    waiting: Vec<(u64, Arc<dyn Bell>)>,
}

/// Order of the operations of one rank of a world.
#[derive(Default)]
pub(super) struct TurnOrder(Mutex<OperationNumbers>);

impl TurnOrder {
    /// Returns the order of the world and the rank whose health this is, which all its endpoints share.
    pub(super) fn of(health: &Arc<Health>) -> Arc<Self> {
        static ALL: Mutex<Vec<(Weak<Health>, Arc<TurnOrder>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // As long as the world exists: ranks close their endpoints at different times.
        all.retain(|(health, _)| health.strong_count() > 0);
        let found = all.iter().find(|(other, _)| other.as_ptr() == Arc::as_ptr(health));
        if let Some((_, found)) = found {
            return Arc::clone(found);
        }
        let order = Arc::<TurnOrder>::default();
        all.push((Arc::downgrade(health), Arc::clone(&order)));
        order
    }

    fn numbers(&self) -> MutexGuard<'_, OperationNumbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a new operation. Only rank 0 gives numbers.
    pub(super) fn give(&self) -> u64 {
        let mut numbers = self.numbers();
        numbers.free += 1;
        numbers.free - 1
    }

    /// Returns the place of the operation that has this number, whose bell rings when its turn comes.
    pub(super) fn place(self: &Arc<Self>, number: u64, bell: &Arc<dyn Bell>) -> TurnTicket {
        self.ring(number, bell);
        TurnTicket { order: Arc::clone(self), number, bell: Arc::clone(bell) }
    }

    /// Rings a bell when the turn of this number comes.
    pub(super) fn ring(&self, number: u64, bell: &Arc<dyn Bell>) {
        self.numbers().waiting.push((number, Arc::clone(bell)));
    }

    /// Returns the number before which everything may have been enqueued that this rank has enqueued so far.
    pub(super) fn begun(&self) -> u64 {
        self.numbers().begun
    }

    /// Returns true once all operations before this number are enqueued.
    pub(super) fn has_come(&self, number: u64) -> bool {
        self.numbers().next >= number
    }
}

/// Place of an operation in the order. The turn of the next one comes when it is dropped.
pub(super) struct TurnTicket {
    order: Arc<TurnOrder>,
    number: u64,
    bell: Arc<dyn Bell>,
}

impl TurnTicket {
    /// Returns the number of the operation.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns true once all operations that come before are enqueued.
    pub(super) fn is_next(&self) -> bool {
        self.order.numbers().next == self.number
    }

    /// Begins to enqueue the operation, whose turn it is.
    pub(super) fn begin(&self) {
        self.order.numbers().begun = self.number + 1;
    }
}

impl Drop for TurnTicket {
    fn drop(&mut self) {
        let mut numbers = self.order.numbers();
        let OperationNumbers { next, skipped, waiting, .. } = &mut *numbers;
        skipped.insert(self.number);
        while skipped.remove(next) {
            *next += 1;
        }
        let bells: Vec<_> = waiting.extract_if(.., |(number, _)| *number <= *next).collect();
        drop(numbers);
        let others = bells.iter().filter(|(_, bell)| !Arc::ptr_eq(bell, &self.bell));
        others.for_each(|(_, bell)| bell.ring());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::alarm::Alarm;
    use std::time::Duration;

    #[test]
    fn each_has_its_turn_when_those_before_are_done_or_given_up() {
        let order = Arc::<TurnOrder>::default();
        assert_eq!([order.give(), order.give(), order.give()], [0, 1, 2]);
        let alarm = Arc::new(Alarm::default());
        let bell: Arc<dyn Bell> = Arc::clone(&alarm) as _;
        let other: Arc<dyn Bell> = Arc::new(Alarm::default());
        let last = order.place(2, &bell);
        let middle = order.place(1, &other);
        assert!(!last.is_next() && !middle.is_next());
        drop(middle);
        let first = order.place(0, &other);
        assert!(first.is_next() && !last.is_next() && !alarm.wait(Duration::ZERO));
        drop(first);
        assert!(last.is_next() && alarm.wait(Duration::ZERO));
    }

    #[test]
    fn a_message_waits_for_what_its_sender_may_have_enqueued_before() {
        let order = Arc::<TurnOrder>::default();
        let bell: Arc<dyn Bell> = Arc::new(Alarm::default());
        let place = order.place(0, &bell);
        assert_eq!(order.begun(), 0);
        place.begin();
        assert!(order.begun() == 1 && order.has_come(0) && !order.has_come(1));
        let alarm = Arc::new(Alarm::default());
        let waiting: Arc<dyn Bell> = Arc::clone(&alarm) as _;
        order.ring(1, &waiting);
        drop(place);
        assert!(order.has_come(1) && alarm.wait(Duration::ZERO));
    }

    #[test]
    fn endpoints_of_a_world_share_an_order_as_long_as_it_is_there() {
        let health = Arc::new(Health::new(0, Vec::new()));
        let order = TurnOrder::of(&health);
        order.give();
        drop(order);
        assert_eq!(TurnOrder::of(&health).give(), 1);
        assert_eq!(TurnOrder::of(&Arc::new(Health::new(0, Vec::new()))).give(), 0);
    }
}
