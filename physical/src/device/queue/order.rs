//! Order of the work of several queues on one memory.

use super::sync_point::{SyncPoint, at};
use super::{DeviceQueue, Event};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The events of one memory for which its work must wait: those of writes by its own queue, for readers on other
/// queues, and those of reads by other queues, for its writers.
///
/// Callers hold views, which settle the order of the program; this type is about the execution.
#[derive(Default)]
pub(crate) struct AccessOrder(Mutex<AccessEvents>);

#[derive(Default)]
struct AccessEvents {
    /// An event of the memory's own queue after the last write, recorded when another queue first needs it.
    written: Option<Arc<dyn Event>>,
    /// The last read of each other queue since the last write.
    read: Vec<(Arc<dyn DeviceQueue>, Arc<dyn Event>)>,
}

impl AccessOrder {
    fn events(&self) -> MutexGuard<'_, AccessEvents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the memory's own queue wait for pending reads of other queues, at a sync point.
    pub(crate) fn before_write(&self, own: &dyn DeviceQueue, place: SyncPoint) {
        for (_, event) in self.events().read.drain(..) {
            at(place, || own.wait(&event));
        }
    }

    /// Records that the memory's own queue has enqueued work that writes it. Called after that, so that an event
    /// recorded in between for a different range is not mistaken for one after it.
    pub(crate) fn after_write(&self) {
        self.events().written = None;
    }

    /// Records the event after the last write, just enqueued by the queue `own`: readers then do not wait for later
    /// work of that queue.
    pub(crate) fn record_write(&self, own: &dyn DeviceQueue) {
        self.events().written = Some(own.record());
    }

    /// Makes `reader` wait for the last write, by the queue `own`.
    pub(crate) fn before_read(&self, own: &Arc<dyn DeviceQueue>, reader: &Arc<dyn DeviceQueue>) {
        if Arc::ptr_eq(own, reader) {
            return;
        }
        let event = Arc::clone(self.events().written.get_or_insert_with(|| own.record()));
        at(SyncPoint::BeforeRead, || reader.wait_to_read(&event));
    }

    /// Notes that `reader` has enqueued work that reads the memory.
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
