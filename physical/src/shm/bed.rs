//! Falling asleep without missing what would have been a reason to stay awake.
//!
//! ```text
//! sleeper   heard ← bell; asleep ← 1; fence; looks at all its work once more; sleeps while bell = heard; asleep ← 0
//! waker     makes work; fence; if asleep: bell += 1, and wakes the sleeper
//! ```
//!
//! Whichever fence comes first, either the sleeper sees the work or the waker sees the sleeper. A waker pays for a store
//! to a line that others write only if somebody sleeps.

use super::count::Count;
use std::sync::atomic::Ordering;

/// How a rank sleeps, and so how it is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// On the bell's own word, a futex.
    Futex = 1,
    /// On a descriptor, beside others.
    Descriptor = 2,
}

/// One rank's bell and whether it sleeps.
pub(super) struct Bed<'a, C> {
    pub(super) bell: &'a C,
    pub(super) asleep: &'a C,
}

impl<C: Count> Bed<'_, C> {
    /// Announces sleep. Afterwards look for work once more, and sleep only while the bell is as it was before.
    pub(super) fn lie_down(&self, how: Sleep) {
        self.asleep.store(how as u64, Ordering::Relaxed);
        C::fence(Ordering::SeqCst);
    }

    pub(super) fn get_up(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }

    /// Comes between making work and [`Bed::nudge`], of however many ranks.
    pub(super) fn after_work() {
        C::fence(Ordering::SeqCst);
    }

    /// After making work and [`Bed::after_work`]: rings if the rank sleeps, and says how to wake it.
    pub(super) fn nudge(&self) -> Option<Sleep> {
        match self.asleep.load(Ordering::Relaxed) {
            0 => None,
            how => {
                self.bell.add(1);
                Some(if how == Sleep::Descriptor as u64 { Sleep::Descriptor } else { Sleep::Futex })
            }
        }
    }
}
