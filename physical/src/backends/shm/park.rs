//! Parking without a lost wake-up.
//!
//! ```text
//! parking rank   seen ← bell; parked ← 1; fence; looks for work once more; sleeps while bell = seen; parked ← 0
//! waking rank    publishes work; fence; if parked: bell += 1, and wakes the rank
//! ```
//!
//! Whichever fence comes first, either the parking rank sees the work or the waking rank sees `parked`. The waking
//! rank writes to a shared cache line only if the rank is parked.

use super::atomic::SharedAtomic;
use std::sync::atomic::Ordering;

/// Kind of sleep of a parked rank, which decides how it is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParkMode {
    /// On the word of the bell, a futex.
    Futex = 1,
    /// On an eventfd, together with other descriptors.
    Descriptor = 2,
}

/// Bell of one rank, and the word with its parking state.
pub(super) struct Parker<'a, C> {
    /// Counts rings. It rises only while the rank is parked, or when the bell is rung unconditionally.
    pub(super) bell: &'a C,
    /// The [`ParkMode`] of the rank, or 0 while it is not parked.
    pub(super) parked: &'a C,
}

impl<C: SharedAtomic> Parker<'_, C> {
    /// Announces that the rank is about to sleep. The caller then looks for work once more, and sleeps only while the
    /// bell is as it was before.
    pub(super) fn announce_park(&self, how: ParkMode) {
        self.parked.store(how as u64, Ordering::Relaxed);
        C::fence(Ordering::SeqCst);
    }

    /// Clears the announcement of [`Parker::announce_park`].
    pub(super) fn end_park(&self) {
        self.parked.store(0, Ordering::Relaxed);
    }

    /// Executes the fence between publishing work and [`Parker::unpark`], once for any number of ranks.
    pub(super) fn fence_before_unpark() {
        C::fence(Ordering::SeqCst);
    }

    /// Rings the bell if the rank is parked, and returns how to wake it. Called after work was published and
    /// [`Parker::fence_before_unpark`].
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
