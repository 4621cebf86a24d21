//! A bell for one thread, in its own memory.

#![allow(clippy::disallowed_methods, reason = "tests of backends and devices stand on it")]

use super::doorbell::Bell;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Bell that ends a wait of one thread.
#[derive(Default)]
pub(crate) struct Alarm {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Alarm {
    /// Waits until the bell rings, and returns true, or until `at_most` has passed.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ringing.wait_timeout_while(rung, at_most, |rung| !*rung);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Bell for Alarm {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_one();
    }
}
