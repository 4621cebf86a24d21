//! Falling asleep without missing what would have been a reason to stay awake.
//!
//! ```text
//! sleeper   heard ← bell; asleep ← 1; fence; looks at all its work once more; sleeps while bell = heard; asleep ← 0
//! waker     makes work; fence; if asleep: bell += 1, and wakes the sleeper
//! ```
//!
//! Whichever fence comes first, either the sleeper sees the work or the waker sees the sleeper. A waker pays for a store
//! to a line that others write only if somebody sleeps.

use super::atomic::SharedAtomic;
use std::sync::atomic::Ordering;

/// How a rank sleeps, and so how it is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParkMode {
    /// On the bell's own word, a futex.
    Futex = 1,
    /// On a descriptor, beside others.
    Descriptor = 2,
}

/// One rank's bell and whether it sleeps.
pub(super) struct Parker<'a, C> {
    pub(super) bell: &'a C,
    pub(super) parked: &'a C,
}

impl<C: SharedAtomic> Parker<'_, C> {
    /// Announces sleep. Afterwards look for work once more, and sleep only while the bell is as it was before.
    pub(super) fn announce_park(&self, how: ParkMode) {
        self.parked.store(how as u64, Ordering::Relaxed);
        C::fence(Ordering::SeqCst);
    }

    pub(super) fn end_park(&self) {
        self.parked.store(0, Ordering::Relaxed);
    }

    /// Comes between making work and [`Parker::unpark`], of however many ranks.
    pub(super) fn fence_before_unpark() {
        C::fence(Ordering::SeqCst);
    }

    /// After making work and [`Parker::fence_before_unpark`]: rings if the rank sleeps, and says how to wake it.
    pub(super) fn unpark(&self) -> Option<ParkMode> {
        match self.parked.load(Ordering::Relaxed) {
            0 => None,
            how => {
                self.bell.add(1);
                Some(if how == ParkMode::Descriptor as u64 { ParkMode::Descriptor } else { ParkMode::Futex })
            }
        }
    }
}
