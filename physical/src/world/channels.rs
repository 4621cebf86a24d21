//! Numbers of channels on one rank: those that are open, and those that ranks agree on.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// First channel that ranks agree on. A program chooses its own numbers below.
const FIRST_AGREED: u16 = 1 << 15;

/// Channels of one rank.
#[derive(Default)]
pub(super) struct Channels(Mutex<ChannelNumbers>);

#[derive(Default)]
struct ChannelNumbers {
    open: BTreeSet<u16>,
    /// Numbers that ranks have agreed on, whether they are open yet or not.
    taken: BTreeSet<u16>,
}

impl Channels {
    fn lock(&self) -> MutexGuard<'_, ChannelNumbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a channel is open. Returns false if it was open already.
    pub(super) fn note_open(&self, channel: u16) -> bool {
        self.lock().open.insert(channel)
    }

    /// Notes that a channel could not be opened.
    pub(super) fn note_failed(&self, channel: u16) {
        self.lock().open.remove(&channel);
    }

    /// Returns the first number above all that this rank has taken.
    pub(super) fn propose(&self) -> Result<u16> {
        match self.lock().taken.last() {
            None => Ok(FIRST_AGREED),
            Some(last) => last
                .checked_add(1)
                .ok_or_else(|| Error::usage("all channels are taken", "open fewer communicators")),
        }
    }

    /// Takes a number. Returns false if it was taken before.
    pub(super) fn take(&self, channel: u16) -> bool {
        self.lock().taken.insert(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_once_and_the_next_proposal_is_above_it() {
        let channels = Channels::default();
        assert_eq!(channels.propose().unwrap(), FIRST_AGREED);
        assert!(channels.take(FIRST_AGREED + 7));
        assert!(!channels.take(FIRST_AGREED + 7));
        assert_eq!(channels.propose().unwrap(), FIRST_AGREED + 8);
        assert!(channels.take(u16::MAX));
        assert!(channels.propose().unwrap_err().to_string().contains("all channels are taken"));
    }

    #[test]
    fn a_channel_is_open_once_until_it_fails() {
        let channels = Channels::default();
        assert!(channels.note_open(3));
        assert!(!channels.note_open(3));
        channels.note_failed(3);
        assert!(channels.note_open(3));
    }
}
