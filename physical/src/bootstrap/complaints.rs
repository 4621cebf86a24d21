//! What is said about callers who are turned away: why, once, and then how many more were, as a port scan must not fill a
//! log.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::{Duration, Instant};

#[derive(Default)]
pub(super) struct Complaints {
    /// By kind: how many since the last word, and when that was.
    kinds: HashMap<io::ErrorKind, (usize, Instant)>,
    /// How the last caller failed who spoke hexagram's language but knew another secret.
    pub(super) denied: Option<String>,
}

impl Complaints {
    const INTERVAL: Duration = Duration::from_secs(10);

    pub(super) fn turned_away(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.denied = Some(error.to_string());
        }
        let now = Instant::now();
        match self.kinds.entry(error.kind()) {
            Entry::Vacant(entry) => {
                tracing::warn!("turned a connection away: {error}");
                entry.insert((0, now));
            }
            Entry::Occupied(mut entry) => {
                let (silent, since) = entry.get_mut();
                *silent += 1;
                if now - *since > Self::INTERVAL {
                    tracing::warn!("turned {silent} more connections away: {error}");
                    (*silent, *since) = (0, now);
                }
            }
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        let silent: usize = self.kinds.values().map(|(silent, _)| silent).sum();
        if silent > 0 {
            tracing::warn!("turned {silent} more connections away");
        }
    }
}
