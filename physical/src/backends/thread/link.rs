//! The link between threads: one mailbox for each rank, and the messages in it.

use crate::memory::ReadView;
use crate::transport::pages::Page;
use crate::transport::{Bell, Label};
use crate::waiting::lock::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

/// Message in flight. Its view is taken once: by the receiver, or by a sender that cancels.
pub(super) struct ThreadMessage {
    pub(super) from: usize,
    pub(super) label: Label,
    view: Mutex<Option<ReadView>>,
    delivered: AtomicBool,
}

impl ThreadMessage {
    /// Creates a message from rank `from` that holds the sender's `view`.
    pub(super) fn new(from: usize, label: Label, view: ReadView) -> Arc<Self> {
        Arc::new(ThreadMessage {
            from,
            label,
            view: Mutex::new(Some(view)),
            delivered: AtomicBool::new(false),
        })
    }

    /// Takes the view. Returns `None` if the other side has taken it already.
    pub(super) fn take(&self) -> Option<ReadView> {
        lock(&self.view).take()
    }

    /// Notifies the sender that its view has been read.
    pub(super) fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Release);
    }

    /// Returns true if the receiver has read the view.
    pub(super) fn is_delivered(&self) -> bool {
        self.delivered.load(Ordering::Acquire)
    }
}

/// Messages for one rank, and its parking place.
#[derive(Default)]
pub(super) struct ThreadMailbox {
    messages: Mutex<Vec<Arc<ThreadMessage>>>,
    /// Set while there may be messages, so that an empty mailbox is seen without its lock.
    full: AtomicBool,
    /// Set by a ring that no park has consumed.
    rung: AtomicBool,
    /// Set while the rank parks, so that others ring only a rank that needs it.
    parked: AtomicBool,
    /// Memory of the rank for words that all ranks access, created on demand.
    page: OnceLock<Arc<Page>>,
    /// Lock of `wake`.
    park_lock: Mutex<()>,
    wake: Condvar,
}

impl ThreadMailbox {
    /// Adds a message and wakes the rank.
    pub(super) fn put(&self, message: Arc<ThreadMessage>) {
        lock(&self.messages).push(message);
        self.full.store(true, Ordering::Release);
        self.ring();
    }

    /// Takes all messages that have arrived since the last call, in order.
    pub(super) fn take_all(&self) -> Vec<Arc<ThreadMessage>> {
        if !self.full.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *lock(&self.messages))
    }

    /// Returns the page of the rank.
    pub(super) fn page(&self) -> Arc<Page> {
        Arc::clone(self.page.get_or_init(Arc::default))
    }

    /// Parks until the bell rings, at most for `at_most`.
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

impl Bell for ThreadMailbox {
    fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) {
            let _park = lock(&self.park_lock);
            self.wake.notify_all();
        }
    }
}
