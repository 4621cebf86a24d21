//! Counts of sent bytes and messages of each endpoint, by transport.

use super::HEADER_BYTES;
use super::backend::TransportKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that this rank moved between ranks, by all endpoints of a world together: the bytes that it put on its
/// links, and those that it read from registered memory of others.
#[derive(Debug, Default)]
pub struct Traffic {
    tallies: Mutex<Vec<(TransportKind, Arc<Tally>)>>,
}

/// One endpoint's part of the [`Traffic`] of its world over one transport. Only that endpoint's thread may add to it:
/// it does so without a locked instruction.
#[derive(Debug, Default)]
pub struct Tally {
    bytes: AtomicU64,
    messages: AtomicU64,
    payload: AtomicU64,
}

impl Tally {
    /// Counts one message of this size, including [`HEADER_BYTES`].
    pub fn sent(&self, bytes: usize) {
        self.notified(bytes, bytes.saturating_sub(HEADER_BYTES));
    }

    /// Counts the beginning of a native collective: the bytes that it posts, and the
    /// [`payload`](super::native::payload) that the collective would send by messages.
    pub fn notified(&self, bytes: usize, payload: usize) {
        add(&self.bytes, bytes);
        add(&self.messages, 1);
        self.carried(payload);
    }

    /// Counts the payload of a collective that begins without a message of this library.
    pub fn carried(&self, payload: usize) {
        add(&self.payload, payload);
    }

    /// Subtracts the payload of a message that was counted as [`sent`](Self::sent), possibly by another tally: it
    /// carries the agreement of ranks, and no data of an operation.
    #[cfg(feature = "cuda")]
    pub(crate) fn carried_nothing(&self, bytes: usize) {
        self.payload
            .store(self.payload.load(Ordering::Relaxed).wrapping_sub(bytes as u64), Ordering::Relaxed);
    }

    /// Counts bytes that were read from a peer's memory, in a collective whose payload was counted as it began.
    pub fn read(&self, bytes: usize) {
        add(&self.bytes, bytes);
    }
}

fn add(count: &AtomicU64, more: usize) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more as u64), Ordering::Relaxed);
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
        // One tally may subtract bytes that a different tally has counted.
        counted.map(|(_, tally)| of(tally).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Returns the bytes sent, headers included.
    pub fn bytes_sent(&self) -> u64 {
        self.sum(|_| true, |tally| &tally.bytes)
    }

    /// Returns the bytes sent by one transport: a mixed world uses shared memory and TCP.
    pub fn bytes_sent_by(&self, path: TransportKind) -> u64 {
        self.sum(|other| other == path, |tally| &tally.bytes)
    }

    /// Returns the payload bytes of all operations, equal on every transport: headers do not count, and a native
    /// collective counts as the messages of its documented steps. Use it to compare algorithms;
    /// [`bytes_sent`](Self::bytes_sent) is the number of bytes that moved.
    pub fn payload_sent(&self) -> u64 {
        self.sum(|_| true, |tally| &tally.payload)
    }

    /// Returns the part of [`payload_sent`](Self::payload_sent) that one transport carried. In a mixed or a simulated
    /// world, [`TransportKind::Shm`] stands for bytes within the host, and the other transport for bytes on the
    /// network.
    pub fn payload_sent_by(&self, path: TransportKind) -> u64 {
        self.sum(|other| other == path, |tally| &tally.payload)
    }

    /// Returns the number of messages sent.
    pub fn messages_sent(&self) -> u64 {
        self.sum(|_| true, |tally| &tally.messages)
    }
}
