//! Timestamps: when work of a queue was done.
//!
//! A queue's work is done long after it was enqueued, so the clock of whoever enqueues tells nothing about it. A timestamp
//! is enqueued like work, and told when the work before it is done.

use super::meanwhile::{PAUSE, go_on};
use crate::runtime::{self, Instant};
use crate::stopwatch::Stopwatch;
use std::time::Duration;

/// A point in the work of a queue, whose time becomes known.
pub trait Timestamp: Send + Sync {
    /// Returns true once all work up to the point is done, or nothing more will be known of it.
    fn has_passed(&self) -> bool;

    /// Returns the moment at which all work up to the point was done, on the clock of the host; `None` before that, and
    /// where the device cannot tell.
    fn moment(&self) -> Option<Instant>;

    /// Returns how far the moment may be from the true one.
    fn error(&self) -> Duration;
}

impl dyn Timestamp {
    /// Waits until the point has passed, and returns true, or until `at_most` has passed.
    pub fn wait(&self, at_most: Duration) -> bool {
        let mut waited = Stopwatch::start();
        while !self.has_passed() {
            if waited.elapsed() > at_most {
                return false;
            }
            // The device may wait for what this thread has to do.
            go_on(None);
            runtime::sleep(PAUSE);
        }
        true
    }
}
