//! Counts of bytes and messages: what each endpoint has sent, by the transport that carried it.

use super::kind::TransportKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that this rank moved between ranks, by all endpoints of a world together: what it put on its links, and what it
/// read of memory that others have registered.
#[derive(Debug, Default)]
pub struct Traffic {
    tallies: Mutex<Vec<(TransportKind, Arc<Tally>)>>,
}

/// One endpoint's part of the [`Traffic`] of its world over one transport. Only that endpoint's thread may add to it: it
/// does so without a locked instruction.
#[derive(Debug, Default)]
pub struct Tally {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl Tally {
    /// Counts one message of so many bytes, [`HEADER_BYTES`](super::HEADER_BYTES) included.
    pub fn sent(&self, bytes: usize) {
        self.read(bytes);
        self.messages.store(self.messages.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts bytes that were read from a peer's memory.
    pub fn read(&self, bytes: usize) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}

impl Traffic {
    /// Creates a tally for an endpoint that sends by `path`. An endpoint has one for each path it uses.
    pub fn tally(&self, path: TransportKind) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        self.tallies().push((path, Arc::clone(&tally)));
        tally
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<(TransportKind, Arc<Tally>)>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sums over the tallies of the paths that `counts` accepts.
    fn sum(&self, counts: impl Fn(TransportKind) -> bool, of: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        let tallies = self.tallies();
        let counted = tallies.iter().filter(|(path, _)| counts(*path));
        counted.map(|(_, tally)| of(tally).load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes sent, headers included.
    pub fn bytes_sent(&self) -> u64 {
        self.sum(|_| true, |tally| &tally.bytes)
    }

    /// Returns the bytes sent by one transport: a mixed world uses shared memory and TCP.
    pub fn bytes_sent_by(&self, path: TransportKind) -> u64 {
        self.sum(|other| other == path, |tally| &tally.bytes)
    }

    /// Returns the number of messages sent.
    pub fn messages_sent(&self) -> u64 {
        self.sum(|_| true, |tally| &tally.messages)
    }
}
