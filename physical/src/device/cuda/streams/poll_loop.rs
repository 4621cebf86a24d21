//! Poll loop: a thread that polls the items of a list until the list is empty.

use crate::waiting::lock::lock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time between the first two polls; it doubles as long as nothing has changed.
const FIRST: Duration = Duration::from_millis(1);

/// Longest time between two polls.
const LONGEST: Duration = Duration::from_millis(64);

/// Items that a thread polls.
pub(crate) struct PollLoop<T> {
    list: Mutex<PolledItems<T>>,
    news: Condvar,
    end: Condvar,
}

struct PolledItems<T> {
    things: Vec<T>,
    /// Time until the next poll.
    pause: Duration,
    /// True if an item was added since the last poll.
    is_new: bool,
    is_over: bool,
    /// True once the thread no longer polls.
    has_ended: bool,
}

impl<T> Default for PollLoop<T> {
    fn default() -> Self {
        let list =
            PolledItems { things: Vec::new(), pause: FIRST, is_new: false, is_over: false, has_ended: false };
        PollLoop { list: Mutex::new(list), news: Condvar::new(), end: Condvar::new() }
    }
}

impl<T> PollLoop<T> {
    /// Polls an item until it is removed.
    pub(crate) fn add(&self, thing: T) {
        let mut list = lock(&self.list);
        list.things.push(thing);
        if list.things.len() == 1 {
            self.news.notify_one();
        }
        self.look_soon(list);
    }

    /// Returns true if the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.list).things.is_empty()
    }

    /// Looks soon.
    pub(crate) fn hurry(&self) {
        self.look_soon(lock(&self.list));
    }

    fn look_soon(&self, mut list: MutexGuard<'_, PolledItems<T>>) {
        list.is_new = true;
        if list.pause > FIRST {
            list.pause = FIRST;
            self.news.notify_one();
        }
    }

    /// Removes items, which are dropped while the list is unlocked.
    pub(crate) fn take_off(&self, is_over: impl FnMut(&mut T) -> bool) {
        let gone: Vec<T> = lock(&self.list).things.extract_if(.., is_over).collect();
        drop(gone);
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        lock(&self.list).is_over = true;
        self.news.notify_one();
    }

    /// Waits until the thread has ended.
    pub(crate) fn wait_for_end(&self, at_most: Duration) {
        let list = lock(&self.list);
        drop(self.end.wait_timeout_while(list, at_most, |list| !list.has_ended));
    }

    /// Polls until the end, and sleeps while the list is empty.
    pub(crate) fn run(&self, look: impl Fn()) {
        let mut list = lock(&self.list);
        while !list.is_over {
            if list.things.is_empty() {
                list = self.news.wait(list).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let pause = list.pause;
            let (guard, timeout) =
                self.news.wait_timeout(list, pause).unwrap_or_else(PoisonError::into_inner);
            list = guard;
            if timeout.timed_out() {
                list.pause = if std::mem::take(&mut list.is_new) { FIRST } else { LONGEST.min(2 * pause) };
                drop(list);
                look();
                list = lock(&self.list);
            }
        }
        list.has_ended = true;
        self.end.notify_all();
    }
}

impl<T: Clone> PollLoop<T> {
    /// Returns all items, to be polled while the list is unlocked.
    pub(crate) fn all(&self) -> Vec<T> {
        lock(&self.list).things.clone()
    }
}
