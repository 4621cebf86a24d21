//! Inboxes of ranks for each other's messages, and the bell that ends their owner's sleep.

use hexagram::physical::transport::{Bell, Label};
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A message on its way.
pub(crate) struct Message {
    /// Rank that sent it.
    pub(crate) from: usize,
    /// Identity of the message.
    pub(crate) label: Label,
    /// Its payload.
    pub(crate) bytes: Vec<u8>,
}

#[derive(Default)]
struct Contents {
    messages: Vec<Message>,
    rung: bool,
}

/// Messages for one rank on one channel, in the order in which they came.
#[derive(Default)]
pub(crate) struct Inbox {
    contents: Mutex<Contents>,
    changed: Condvar,
}

impl Inbox {
    /// Puts a message in, and wakes the owner.
    pub(crate) fn put(&self, message: Message) {
        lock(&self.contents).messages.push(message);
        self.ring();
    }

    /// Takes out all messages since the last call.
    pub(crate) fn take(&self) -> Vec<Message> {
        mem::take(&mut lock(&self.contents).messages)
    }

    /// Sleeps until a message arrives, the bell rings, or the time is up.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let quiet = |contents: &mut Contents| contents.messages.is_empty() && !contents.rung;
        let waited = self.changed.wait_timeout_while(lock(&self.contents), at_most, quiet);
        waited.unwrap_or_else(PoisonError::into_inner).0.rung = false;
    }
}

impl Bell for Inbox {
    fn ring(&self) {
        lock(&self.contents).rung = true;
        self.changed.notify_all();
    }
}

/// The inboxes of one rank, by channel. The first user of a channel creates its inbox.
pub(crate) struct Inboxes {
    number: u32,
    channels: Mutex<HashMap<u16, Arc<Inbox>>>,
}

/// The inboxes of all ranks of this process, by number.
static RANKS: LazyLock<Mutex<HashMap<u32, Weak<Inboxes>>>> = LazyLock::new(Mutex::default);

impl Inboxes {
    /// Opens the inboxes of a rank, which others find by their number.
    pub(crate) fn open() -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let inboxes = Arc::new(Inboxes { number, channels: Mutex::default() });
        lock(&RANKS).insert(number, Arc::downgrade(&inboxes));
        inboxes
    }

    /// Finds the inboxes of a rank that is still there.
    pub(crate) fn find(number: u32) -> Option<Arc<Self>> {
        lock(&RANKS).get(&number)?.upgrade()
    }

    /// Returns the number by which others find them.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the inbox of a channel.
    pub(crate) fn channel(&self, channel: u16) -> Arc<Inbox> {
        Arc::clone(lock(&self.channels).entry(channel).or_default())
    }
}

impl Drop for Inboxes {
    fn drop(&mut self) {
        lock(&RANKS).remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is consistent after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
