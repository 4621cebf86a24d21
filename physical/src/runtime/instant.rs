//! Instants of a clock that may be virtual.

use super::now;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::LazyLock;
use std::time::{self, Duration};

/// The instant from which virtual clocks count.
static ORIGIN: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);

/// A point in time, by the clock of this thread's [runtime](super). As [`std::time::Instant`], except that [`now`](super::now)
/// returns it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(time::Instant);

impl Instant {
    /// Returns the instant at this time after the origin of all virtual clocks of this process, for runtimes with
    /// their own clock.
    pub fn after_origin(elapsed: Duration) -> Self {
        Instant(*ORIGIN + elapsed)
    }

    #[inline]
    pub(super) fn of_system() -> Self {
        Instant(time::Instant::now())
    }

    /// Returns the time since this instant; zero if it is in the future.
    #[inline]
    pub fn elapsed(&self) -> Duration {
        now().saturating_duration_since(*self)
    }

    /// Returns the time from `earlier` to this instant; zero if that is the later one.
    #[inline]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time from `earlier` to this instant; zero if that is the later one.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }

    /// Returns the instant after this duration, unless no clock could show it.
    pub fn checked_add(&self, duration: Duration) -> Option<Self> {
        self.0.checked_add(duration).map(Instant)
    }

    /// Returns the instant before this duration, unless no clock could show it.
    pub fn checked_sub(&self, duration: Duration) -> Option<Self> {
        self.0.checked_sub(duration).map(Instant)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Instant(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Instant(self.0 - duration)
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Shown as the time since the origin, so that a virtual instant is the same in every run.
impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.saturating_duration_since(*ORIGIN);
        write!(f, "Instant({since:?})")
    }
}
