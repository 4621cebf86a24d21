//! What lies between two threads: mailboxes, and the messages in them.

use crate::memory::ReadView;
use crate::transport::{Bell, Label};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A message under way: the sender's view, taken by the receiver or taken back by a cancelling sender.
pub(super) struct ThreadMessage {
    pub(super) from: usize,
    pub(super) label: Label,
    view: Mutex<Option<ReadView>>,
    delivered: AtomicBool,
}

impl ThreadMessage {
    pub(super) fn new(from: usize, label: Label, view: ReadView) -> Arc<Self> {
        Arc::new(ThreadMessage {
            from,
            label,
            view: Mutex::new(Some(view)),
            delivered: AtomicBool::new(false),
        })
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
    messages: Mutex<Vec<Arc<ThreadMessage>>>,
    full: AtomicBool,
    rung: AtomicBool,
    parked: AtomicBool,
    park_lock: Mutex<()>,
    wake: Condvar,
}

impl Mailbox {
    pub(super) fn put(&self, message: Arc<ThreadMessage>) {
        lock(&self.messages).push(message);
        self.full.store(true, Ordering::Release);
        self.ring();
    }

    /// Everything that has arrived since the last call, in order.
    pub(super) fn take_all(&self) -> Vec<Arc<ThreadMessage>> {
        if !self.full.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.messages))
    }

    /// Sleeps until the bell rings or the time is over.
    pub(super) fn park(&self, at_most: Duration) {
        let guard = lock(&self.park_lock);
        self.parked.store(true, Ordering::SeqCst);
        // A ring before this line is seen here; a ring after it sees `parked` and needs the lock to notify.
        if !self.rung.swap(false, Ordering::SeqCst) {
            let woken = self.wake.wait_timeout(guard, at_most);
            drop(woken);
            self.rung.store(false, Ordering::SeqCst);
        }
        self.parked.store(false, Ordering::SeqCst);
    }
}

impl Bell for Mailbox {
    fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) {
            let _bed = lock(&self.park_lock);
            self.wake.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
