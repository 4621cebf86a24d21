//! What lies between two threads: mailboxes, and the parcels in them.

use crate::memory::ReadView;
use crate::transport::{Bell, Label};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A message under way: the sender's view, taken by the receiver or taken back by a cancelling sender.
pub(super) struct Parcel {
    pub(super) from: usize,
    pub(super) label: Label,
    view: Mutex<Option<ReadView>>,
    delivered: AtomicBool,
}

impl Parcel {
    pub(super) fn new(from: usize, label: Label, view: ReadView) -> Arc<Self> {
        Arc::new(Parcel { from, label, view: Mutex::new(Some(view)), delivered: AtomicBool::new(false) })
    }

    /// The view, for whoever comes first.
    pub(super) fn take(&self) -> Option<ReadView> {
        lock(&self.view).take()
    }

    pub(super) fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Release);
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Acquire)
    }
}

/// Where one rank receives, and where it sleeps.
#[derive(Default)]
pub(super) struct Mailbox {
    parcels: Mutex<Vec<Arc<Parcel>>>,
    full: AtomicBool,
    rung: AtomicBool,
    sleeping: AtomicBool,
    bed: Mutex<()>,
    wake: Condvar,
}

impl Mailbox {
    pub(super) fn put(&self, parcel: Arc<Parcel>) {
        lock(&self.parcels).push(parcel);
        self.full.store(true, Ordering::Release);
        self.ring();
    }

    /// Everything that has arrived since the last call, in order.
    pub(super) fn empty(&self) -> Vec<Arc<Parcel>> {
        if !self.full.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.parcels))
    }

    /// Sleeps until the bell rings or the time is over.
    pub(super) fn sleep(&self, at_most: Duration) {
        let bed = lock(&self.bed);
        self.sleeping.store(true, Ordering::SeqCst);
        // A ring before this line is seen here; a ring after it sees `sleeping` and needs the lock to notify.
        if !self.rung.swap(false, Ordering::SeqCst) {
            let woken = self.wake.wait_timeout(bed, at_most);
            drop(woken);
            self.rung.store(false, Ordering::SeqCst);
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}

impl Bell for Mailbox {
    fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) {
            let _bed = lock(&self.bed);
            self.wake.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
