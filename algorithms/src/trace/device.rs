//! Times of a device, which executes work long after it was enqueued.
//!
//! A timestamp is enqueued before and after the work, on the same queue. Times are read once the device has reached
//! them: while other spans are recorded, and at the end. So no more timestamps are kept than the device has in flight.

use super::Span;
use super::clock::TraceClock;
use hexagram_logical::device::Timestamp;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A point in the work of a device queue.
pub(crate) type Stamp = Arc<dyn Timestamp>;

/// Spans of a device.
#[derive(Default)]
pub(crate) struct DeviceSpans {
    /// Spans whose times have not been read yet, with the timestamps before and after them, in the order of recording.
    pending: VecDeque<(Span, [Stamp; 2])>,
    pub(super) known: Vec<Span>,
    /// Number of spans without known times, or beyond the limit.
    pub(super) dropped: u64,
    /// Maximum error of the times.
    pub(super) error: Duration,
}

impl DeviceSpans {
    /// Returns the number of spans.
    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.known.len()
    }

    /// Records a span between two timestamps.
    pub(super) fn keep(&mut self, clock: &TraceClock, span: Span, stamps: [Stamp; 2]) {
        self.pending.push_back((span, stamps));
        // Two for each new span, so that their number does not grow.
        for _ in 0..2 {
            match self.pending.front() {
                Some((_, [_, end])) if end.has_passed() => self.read(clock),
                _ => return,
            }
        }
    }

    /// Counts a dropped span.
    pub(super) fn drop_one(&mut self) {
        self.dropped += 1;
    }

    /// Reads the times of all spans; waits at most `limit`.
    pub(crate) fn settle(&mut self, clock: &TraceClock, limit: Duration) {
        while let Some((_, [_, end])) = self.pending.front() {
            if !end.wait(limit) {
                // The next wait for the work of the device will report that it does not end.
                self.dropped += self.pending.drain(..).count() as u64;
            }
            self.read(clock);
        }
    }

    /// Reads the times of the first span.
    fn read(&mut self, clock: &TraceClock) {
        let Some((span, [start, end])) = self.pending.pop_front() else { return };
        let (Some(begun), Some(ended)) = (start.moment(), end.moment()) else { return self.drop_one() };
        self.error = self.error.max(start.error()).max(end.error());
        let start = clock.at(begun);
        // Two timestamps may have different reference points, each with its error.
        self.known.push(Span { start, end: clock.at(ended).max(start), ..span });
    }
}
