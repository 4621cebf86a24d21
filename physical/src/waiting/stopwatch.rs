//! Time during which this process has run. Use it for every deadline, silence or grace period, so that a stopped job
//! (Ctrl-Z, a debugger, a suspended batch job) continues where it was.
//!
//! A process is not notified that it was stopped, or starved. But a waiting thread checks repeatedly, at known
//! intervals: a longer gap between two checks is time that this process did not have, and counts only as one such
//! interval. Therefore code that judges by a stopwatch must have checked for data that arrived since the gap, which
//! is unread by then.

use crate::runtime::{self, Instant};
use std::io::{self, Read, Write};
use std::time::Duration;

/// Longest gap between two looks that counts whole: several times the longest sleep of a thread that waits.
const GAP: Duration = Duration::from_millis(250);

/// Measures the duration of a wait, without the time in which this process did not run.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    looked: Instant,
    lived: Duration,
    gap: Duration,
}

impl Stopwatch {
    /// Starts a stopwatch that is checked every 50 ms or so.
    pub fn start() -> Self {
        Self::with_gap(GAP)
    }

    /// Starts a stopwatch whose checks may be `gap` apart.
    pub fn with_gap(gap: Duration) -> Self {
        Stopwatch { looked: runtime::now(), lived: Duration::ZERO, gap }
    }

    /// Returns the time that this process has lived since the last look.
    pub fn lap(&mut self) -> Duration {
        self.lap_at(runtime::now())
    }

    /// Returns the time that this process has lived since the start.
    pub fn elapsed(&mut self) -> Duration {
        self.lap();
        self.lived
    }

    fn lap_at(&mut self, now: Instant) -> Duration {
        let lap = now.saturating_duration_since(self.looked).min(self.gap);
        self.looked = now;
        self.lived += lap;
        lap
    }
}

/// A connection that checks a stopwatch at each read and write: a stop of this process during one of them counts as
/// the maximum of that one, not as the maximum of all together.
pub(crate) struct Watched<'a, C> {
    connection: &'a mut C,
    watch: &'a mut Stopwatch,
}

impl<'a, C> Watched<'a, C> {
    pub(crate) fn new(connection: &'a mut C, watch: &'a mut Stopwatch) -> Self {
        Watched { connection, watch }
    }
}

impl<C: Read> Read for Watched<'_, C> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let outcome = self.connection.read(into);
        self.watch.lap();
        outcome
    }
}

impl<C: Write> Write for Watched<'_, C> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let outcome = self.connection.write(bytes);
        self.watch.lap();
        outcome
    }

    fn flush(&mut self) -> io::Result<()> {
        self.connection.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looked_counts_only_as_one_gap() {
        let mut watch = Stopwatch::with_gap(Duration::from_secs(1));
        let start = watch.looked;
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(watch.lap_at(at(400)), Duration::from_millis(400));
        assert_eq!(watch.lap_at(at(1400)), Duration::from_secs(1));
        assert_eq!(watch.lap_at(at(999_000)), Duration::from_secs(1), "it was stopped");
        assert_eq!(watch.lap_at(at(999_100)), Duration::from_millis(100));
        assert_eq!(watch.lived, Duration::from_millis(2500));
    }

    #[test]
    fn a_stop_during_one_read_of_several_counts_as_one_step() {
        struct Stopped;
        impl Read for Stopped {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                std::thread::sleep(Duration::from_millis(60));
                Ok(into.len())
            }
        }
        let mut watch = Stopwatch::with_gap(Duration::from_millis(10));
        let mut stopped = Stopped;
        let mut watched = Watched::new(&mut stopped, &mut watch);
        for _ in 0..2 {
            watched.read_exact(&mut [0; 4]).unwrap();
        }
        let lived = watch.lived;
        assert_eq!(lived, Duration::from_millis(20));
    }
}
