//! The agenda: the future events, in virtual time.

use crate::device::kernels::draw::mix;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

/// Virtual time since the start, in nanoseconds.
pub(crate) type Nanoseconds = u64;

/// Returns a duration as virtual time, up to the end of all time.
pub(crate) fn nanoseconds(duration: Duration) -> Nanoseconds {
    Nanoseconds::try_from(duration.as_nanos()).unwrap_or(Nanoseconds::MAX)
}

/// Returns seconds as virtual time, rounded up, so that no work takes zero time.
pub(crate) fn from_seconds(seconds: f64) -> Nanoseconds {
    // Casts saturate.
    (seconds * 1e9).ceil() as Nanoseconds
}

/// Returns a seed for draws that are independent of the order of events.
pub(crate) fn message_seed(seed: u64) -> u64 {
    mix(seed ^ 0x6d65_7373_6167_6573)
}

/// Random numbers of a simulated world, all of which follow from its seed.
#[derive(Debug, Clone)]
pub(crate) struct RandomDraws(u64);

impl RandomDraws {
    pub(crate) fn new(seed: u64) -> Self {
        RandomDraws(mix(seed))
    }

    /// Draws a word.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Draws a number from [0, 1).
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Appointment<E> {
    at: Nanoseconds,
    /// Random, so that a seed has its own order of simultaneous events.
    tie: u64,
    /// Number of entries before it.
    number: u64,
    event: E,
}

impl<E> Appointment<E> {
    fn key(&self) -> (Nanoseconds, u64, u64) {
        (self.at, self.tie, self.number)
    }
}

impl<E> PartialEq for Appointment<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Appointment<E> {}

impl<E> PartialOrd for Appointment<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Appointment<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// Future events.
pub(crate) struct Agenda<E> {
    entries: BinaryHeap<Reverse<Appointment<E>>>,
    added: u64,
    /// `None` for the order in which they were added.
    draws: Option<RandomDraws>,
}

impl<E> Agenda<E> {
    /// Creates an empty agenda. Simultaneous events happen in the order in which they were added, or, with a seed, in
    /// an order that follows from it.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Agenda { entries: BinaryHeap::new(), added: 0, draws: seed.map(RandomDraws::new) }
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, at: Nanoseconds, event: E) {
        self.added += 1;
        let tie = self.draws.as_mut().map_or(0, RandomDraws::word);
        self.entries.push(Reverse(Appointment { at, tie, number: self.added, event }));
    }

    /// Returns the time of the next event.
    pub(crate) fn next_time(&self) -> Option<Nanoseconds> {
        self.entries.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event.
    pub(crate) fn take(&mut self) -> Option<(Nanoseconds, E)> {
        self.entries.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: Option<u64>) -> Vec<u32> {
        let mut agenda = Agenda::new(seed);
        (0..8).for_each(|event| agenda.add(5, event));
        agenda.add(4, 100);
        std::iter::from_fn(|| agenda.take()).map(|(_, event)| event).collect()
    }

    #[test]
    fn a_seed_has_its_order_of_what_happens_at_once() {
        assert_eq!(order(None), [100, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order(Some(1)), order(Some(1)));
        assert_eq!(order(Some(1))[0], 100);
        assert_ne!(order(Some(1)), order(Some(2)));
    }

    #[test]
    fn fractions_are_below_one_and_spread() {
        let mut draws = RandomDraws::new(7);
        let drawn: Vec<f64> = (0..1000).map(|_| draws.fraction()).collect();
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = drawn.iter().sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
    }

    #[test]
    fn draws_apart_are_others() {
        let words = |seed| -> Vec<u64> {
            let mut draws = RandomDraws::new(seed);
            (0..1000).map(|_| draws.word()).collect()
        };
        for seed in 0..20 {
            assert_ne!(message_seed(seed), message_seed(seed + 1));
            let of_order = words(seed);
            assert!(words(message_seed(seed)).iter().all(|word| !of_order.contains(word)), "{seed}");
        }
    }

    #[test]
    fn what_takes_time_never_takes_none() {
        assert_eq!(from_seconds(1e-12), 1);
        assert_eq!(from_seconds(0.0), 0);
        assert_eq!(nanoseconds(Duration::MAX), Nanoseconds::MAX);
    }
}
