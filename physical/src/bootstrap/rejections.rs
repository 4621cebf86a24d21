//! What is said about callers who are turned away: why, once, and then how many more were, as a port scan must not fill a
//! log.

use crate::runtime::{self, Instant};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Rejections {
    /// By kind: how many since the last word, and when that was.
    kinds: HashMap<io::ErrorKind, (usize, Instant)>,
    /// How the last caller failed who spoke hexagram's language but knew another secret.
    pub(super) denied: Option<String>,
}

impl Rejections {
    const INTERVAL: Duration = Duration::from_secs(10);

    pub(super) fn record(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.denied = Some(error.to_string());
        }
        let now = runtime::now();
        match self.kinds.entry(error.kind()) {
            Entry::Vacant(entry) => {
                tracing::warn!("turned a connection away: {error}");
                entry.insert((0, now));
            }
            Entry::Occupied(mut entry) => {
                let (unreported, since) = entry.get_mut();
                *unreported += 1;
                if now - *since > Self::INTERVAL {
                    tracing::warn!("turned {unreported} more connections away: {error}");
                    (*unreported, *since) = (0, now);
                }
            }
        }
    }
}

impl Drop for Rejections {
    fn drop(&mut self) {
        let unreported: usize = self.kinds.values().map(|(unreported, _)| unreported).sum();
        if unreported > 0 {
            tracing::warn!("turned {unreported} more connections away");
        }
    }
}
