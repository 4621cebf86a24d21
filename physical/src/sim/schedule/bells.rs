//! Bells of ranks, which end the parks of their threads.

use super::agenda::Nanoseconds;
use super::{Pause, ScheduledEvent, SimulatedWorld, Simulator};
use std::mem;

/// Time after which a rank checks an announcement to all ranks: more may have arrived by then.
const NEWS: Nanoseconds = 1_000_000;

impl Simulator {
    /// Ends the park of the threads of a rank, or the next one, at the time of the ringing thread. A bell rung by another rank
    /// ends it slightly later, because many may ring together: for example, when a thousand ranks leave, each rings all others.
    pub(crate) fn ring(&self, rank: usize) {
        let mut state = self.lock();
        let at = state.local_time();
        if rank != state.running_rank() {
            if !mem::replace(&mut state.has_news[rank], true) {
                state.agenda.add(at + NEWS, ScheduledEvent::News(rank));
            }
        } else if at > state.now {
            state.agenda.add(at, ScheduledEvent::Ring(rank));
        } else {
            state.ring_threads(rank);
        }
    }

    /// Returns the number of notifications to a rank's threads about events other than mail.
    pub(crate) fn rings(&self, rank: usize) -> u64 {
        self.lock().rings[rank]
    }
}

impl SimulatedWorld {
    /// Wakes the threads of a rank that wait for messages, bells and futures.
    pub(super) fn wake_parked(&mut self, rank: usize) {
        for at in 0..self.of_rank[rank].len() {
            let number = self.of_rank[rank][at];
            if self.threads[number].wait == Pause::Parked {
                self.wake(number);
            }
        }
    }

    /// Wakes the threads of a rank, for any check.
    pub(super) fn ring(&mut self, rank: usize) {
        self.rings[rank] += 1;
        self.wake_parked(rank);
    }

    /// Ends the park of a rank's threads, or the next one of those that do not park.
    pub(super) fn ring_threads(&mut self, rank: usize) {
        for number in &self.of_rank[rank] {
            let thread = &mut self.threads[*number];
            thread.rung |= thread.wait != Pause::Parked;
        }
        self.ring(rank);
    }
}
