//! Times of a device, which does work long after it was enqueued.
//!
//! Behind and before its work, a timestamp is enqueued on the same queue. Their moments are read once the device has come
//! to them: while others are recorded, and in the end. So no more of them are kept than the device has in flight.

use super::Span;
use super::clock::Clock;
use hexagram_logical::device::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A point in the work of a device's queue.
pub(crate) type Stamp = Arc<dyn Timestamp>;

/// Spans of a device.
#[derive(Default)]
pub(crate) struct DeviceSpans {
    /// Spans whose times were not read yet, with the points before and behind them, in the order of recording.
    pending: VecDeque<(Span, [Stamp; 2])>,
    pub(super) known: Vec<Span>,
    /// Number of spans of which no times are known, or that were too many.
    pub(super) dropped: u64,
    /// Largest error of the times.
    pub(super) error: Duration,
}

impl DeviceSpans {
    /// Returns the number of spans.
    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.known.len()
    }

    /// Keeps a span from one point to another.
    pub(super) fn keep(&mut self, clock: &Clock, span: Span, stamps: [Stamp; 2]) {
        self.pending.push_back((span, stamps));
        // Two for one that comes, so that they do not become more and more.
        for _ in 0..2 {
            match self.pending.front() {
                Some((_, [_, end])) if end.has_passed() => self.read(clock),
                _ => return,
            }
        }
    }

    /// Counts a span that is not kept.
    pub(super) fn drop_one(&mut self) {
        self.dropped += 1;
    }

    /// Reads the times of all spans, for which it waits for `limit` at most.
    pub(crate) fn settle(&mut self, clock: &Clock, limit: Duration) {
        while let Some((_, [_, end])) = self.pending.front() {
            if !end.wait(limit) {
                // Whoever waits for the device's work will say that it does not end.
                self.dropped += self.pending.drain(..).count() as u64;
            }
            self.read(clock);
        }
    }

    /// Reads the times of the first span.
    fn read(&mut self, clock: &Clock) {
        let Some((span, [start, end])) = self.pending.pop_front() else { return };
        let (Some(begun), Some(ended)) = (start.moment(), end.moment()) else { return self.drop_one() };
        self.error = self.error.max(start.error()).max(end.error());
        let start = clock.at(begun);
        // Two points may be told against different references, each with its error.
        self.known.push(Span { start, end: clock.at(ended).max(start), ..span });
    }
}
