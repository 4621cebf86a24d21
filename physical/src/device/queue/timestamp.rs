//! Timestamps: when work of a queue was done.
//!
//! Work of a queue completes long after it was enqueued, so that the clock of the caller says nothing about it. A
//! timestamp is enqueued like work, and completes with the work before it.

use super::meanwhile::{PAUSE, go_on};
use crate::runtime::{self, Instant};
use crate::waiting::stopwatch::Stopwatch;
use std::time::Duration;

/// A point in the work of a queue, with the time of its completion.
pub trait Timestamp: Send + Sync {
    /// Returns true once all work up to the point is done, or its time will remain unknown.
    fn has_passed(&self) -> bool;

    /// Returns the moment at which all work up to the point was done, on the host clock; `None` before that, and on a
    /// device without timestamps.
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
            // The device may wait for other work of this thread.
            go_on(None);
            runtime::sleep(PAUSE);
        }
        true
    }
}
