//! One clock for all ranks: the offset of each rank's clock from that of rank 0, and its error.
//!
//! ```text
//! rank 0            rank r
//! before ──────►
//!                   theirs            before ≤ theirs + offset ≤ after, on the clock of rank 0
//! after  ◄──────
//!
//! offset = (before + after)/2 − theirs    error = (after − before)/2
//! ```
//!
//! Of several exchanges, the one with the shortest round trip is kept. Clocks also run at different speeds, so offsets
//! are measured at the beginning and the end of a trace, and interpolated linearly.

use hexagram_logical::runtime::{self, Instant};
use hexagram_logical::{Communicator, Result};

/// Number of exchanges with each rank. The first ones are slow, with cold caches and links.
const EXCHANGES: usize = 16;

/// Monotonic clock of one rank, in nanoseconds from the beginning of its trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceClock(Instant);

impl TraceClock {
    pub(crate) fn start() -> Self {
        TraceClock(runtime::now())
    }

    pub(crate) fn now(&self) -> i64 {
        self.at(runtime::now())
    }

    /// Returns a moment on this clock; those before the trace become its beginning.
    pub(crate) fn at(&self, moment: Instant) -> i64 {
        moment.saturating_duration_since(self.0).as_nanos() as i64
    }
}

/// Difference between the clock of a rank and that of rank 0, to add to the former.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Offset {
    /// Time of the measurement, on the clock of the rank.
    pub(super) at: i64,
    pub(super) offset: i64,
    /// Largest error of the measurement, in nanoseconds.
    pub(super) error: i64,
}

/// Measures the clock of every rank against that of rank 0, which gets the offsets, by rank. A collective call.
pub(crate) fn align(comm: &Communicator, clock: &TraceClock) -> Result<Vec<Offset>> {
    if comm.rank() != 0 {
        for _ in 0..EXCHANGES {
            comm.blocking().recv(&mut [0i64], 0)?;
            comm.blocking().send(&[clock.now()], 0)?;
        }
        return Ok(Vec::new());
    }
    let mut offsets = vec![Offset::default()];
    for rank in 1..comm.size() {
        let mut best = exchange(comm, clock, rank)?;
        for _ in 1..EXCHANGES {
            let next = exchange(comm, clock, rank)?;
            best = if next.error < best.error { next } else { best };
        }
        offsets.push(best);
    }
    Ok(offsets)
}

fn exchange(comm: &Communicator, clock: &TraceClock, rank: usize) -> Result<Offset> {
    let mut theirs = [0i64];
    let before = clock.now();
    comm.blocking().send(&[before], rank)?;
    comm.blocking().recv(&mut theirs, rank)?;
    let after = clock.now();
    let [theirs] = theirs;
    // Halves are rounded, with an error below 1.
    Ok(Offset { at: theirs, offset: before.midpoint(after) - theirs, error: (after - before) / 2 + 1 })
}

/// The clock of a rank against that of rank 0, over a whole trace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alignment {
    pub(super) first: Offset,
    pub(super) last: Offset,
}

impl Alignment {
    /// Returns the same moment on the clock of rank 0.
    pub(super) fn shift(&self, time: i64) -> i64 {
        let Alignment { first, last } = self;
        let passed = (time - first.at) as f64;
        let whole = (last.at - first.at) as f64;
        let drift = (last.offset - first.offset) as f64;
        let drifted = if whole > 0.0 { drift * passed / whole } else { 0.0 };
        time + first.offset + drifted.round() as i64
    }

    /// Returns the maximum error of a shifted moment, if the speeds of the clocks did not change.
    pub(super) fn error(&self) -> i64 {
        self.first.error.max(self.last.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::testing::{spawn, transports};
    use std::time::Duration;

    #[test]
    fn offsets_are_as_far_from_an_injected_skew_as_their_error_says() {
        for transport in transports() {
            let origin = runtime::now();
            // On its own clock, the trace of rank r began 250 ms earlier than that of the rank before.
            let skew = |rank: usize| Duration::from_millis(250) * rank as u32;
            let clock = |rank: usize| TraceClock(origin.checked_sub(skew(rank)).unwrap());
            let found = spawn(transport, 3, |comm| align(&comm, &clock(comm.rank()))).unwrap();
            assert!(found[1].is_empty() && found[2].is_empty());
            assert_eq!(found[0][0], Offset::default());
            for (rank, found) in found[0].iter().enumerate() {
                let truth = -(skew(rank).as_nanos() as i64);
                assert!((found.offset - truth).abs() <= found.error, "{transport}, rank {rank}: {found:?}");
            }
        }
    }

    #[test]
    fn between_two_alignments_the_drift_is_a_line() {
        let first = Offset { at: 1_000, offset: 500, error: 3 };
        let last = Offset { at: 11_000, offset: 600, error: 8 };
        let alignment = Alignment { first, last };
        assert_eq!(alignment.shift(1_000), 1_500);
        assert_eq!(alignment.shift(6_000), 6_550);
        assert_eq!(alignment.shift(11_000), 11_600);
        assert_eq!(alignment.error(), 8);
        assert_eq!(Alignment { first, last: first }.shift(2_000), 2_500);
    }
}
