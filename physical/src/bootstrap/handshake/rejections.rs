//! Warnings about rejected connections: the first of each kind immediately, then counts, so that a port scan does not
//! fill a log.

use crate::runtime::{self, Instant};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::time::Duration;

/// Rejected connections by kind.
#[derive(Default)]
pub(crate) struct Rejections {
    /// Number of rejections since the last warning, and the instant of that warning, by kind.
    kinds: HashMap<io::ErrorKind, (usize, Instant)>,
    /// Last rejection of a peer that spoke the protocol but proved a different secret.
    pub(crate) denied: Option<String>,
}

impl Rejections {
    /// Shortest time between two warnings of one kind.
    const INTERVAL: Duration = Duration::from_secs(10);

    /// Counts a rejected connection, and warns about it unless a recent warning had the same kind.
    pub(crate) fn record(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.denied = Some(error.to_string());
        }
        let now = runtime::now();
        match self.kinds.entry(error.kind()) {
            Entry::Vacant(entry) => {
                tracing::warn!("rejected a connection: {error}");
                entry.insert((0, now));
            }
            Entry::Occupied(mut entry) => {
                let (unreported, since) = entry.get_mut();
                *unreported += 1;
                if now - *since > Self::INTERVAL {
                    tracing::warn!("rejected {unreported} more connections: {error}");
                    *unreported = 0;
                    *since = now;
                }
            }
        }
    }
}

impl Drop for Rejections {
    fn drop(&mut self) {
        let unreported: usize = self.kinds.values().map(|(unreported, _)| unreported).sum();
        if unreported > 0 {
            tracing::warn!("rejected {unreported} more connections");
        }
    }
}
