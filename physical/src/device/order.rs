//! Order of the work of several queues on one memory.

use super::place::{WaitPlace, at};
use super::queue::{DeviceQueue, Event};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The events of one memory that work on it has to wait for: those of its own queue's writes, for readers on other
/// queues, and those of other queues' reads, for its writers.
///
/// Work calls what it needs while it holds views, so that the program's order is settled; this is about when it runs.
#[derive(Default)]
pub(crate) struct Order(Mutex<Events>);

#[derive(Default)]
struct Events {
    /// An event of the memory's own queue after the last write, recorded when another queue first asks.
    written: Option<Arc<dyn Event>>,
    /// The last read of each other queue since the last write.
    read: Vec<(Arc<dyn DeviceQueue>, Arc<dyn Event>)>,
}

impl Order {
    fn events(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the memory's own queue wait for what others still read, at a place.
    pub(crate) fn before_write(&self, own: &dyn DeviceQueue, place: WaitPlace) {
        for (_, event) in self.events().read.drain(..) {
            at(place, || own.wait(&event));
        }
    }

    /// Notes that the memory's own queue has work that writes it. Called after that was enqueued, so that an event
    /// recorded meanwhile for another range does not pass for one after it.
    pub(crate) fn after_write(&self) {
        self.events().written = None;
    }

    /// Records the event after the last write, which the queue `own` has just enqueued: readers then wait for nothing
    /// that it enqueues later.
    pub(crate) fn record_write(&self, own: &dyn DeviceQueue) {
        self.events().written = Some(own.record());
    }

    /// Lets `reader` wait for the last write, which the queue `own` did or will do.
    pub(crate) fn before_read(&self, own: &Arc<dyn DeviceQueue>, reader: &Arc<dyn DeviceQueue>) {
        if Arc::ptr_eq(own, reader) {
            return;
        }
        let event = Arc::clone(self.events().written.get_or_insert_with(|| own.record()));
        at(WaitPlace::BeforeRead, || reader.wait_to_read(&event));
    }

    /// Notes that `reader` has work that reads the memory, once that was enqueued.
    pub(crate) fn after_read(&self, own: &Arc<dyn DeviceQueue>, reader: &Arc<dyn DeviceQueue>) {
        if Arc::ptr_eq(own, reader) {
            return;
        }
        let event = reader.record();
        let mut events = self.events();
        match events.read.iter_mut().find(|(queue, _)| Arc::ptr_eq(queue, reader)) {
            Some((_, last)) => *last = event,
            None => events.read.push((Arc::clone(reader), event)),
        }
    }
}
