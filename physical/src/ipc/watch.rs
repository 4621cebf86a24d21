//! Eyes on an operation that is enqueued: a stream that waits for a dead rank, or for ever, is let go on by the host.
//!
//! The failure comes first, the release a moment later: what a stream does then is wrong, and it tells the others' that
//! it has done it. In that moment they learn of the failure, too, and what they read is known to be wrong. Where a rank
//! hears of it later, the mark that was written before the release tells it so.

use super::collectives::Reach;
use super::words::has_come;
use crate::device::Queue;
use crate::device::cuda::{CudaQueue, Watch};
use crate::error::{During, Error};
use crate::stopwatch::Stopwatch;
use crate::transport::Label;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time from a failure to the release of streams: all ranks look several times meanwhile.
const PATIENCE: Duration = Duration::from_millis(250);

/// An operation in flight.
pub(super) struct Flight {
    reach: Arc<Reach>,
    queue: Queue,
    label: Label,
    /// Step before its own, and its last one.
    first: u32,
    last: u32,
    progress: Mutex<Progress>,
}

/// Progress of an operation.
struct Progress {
    /// Words of all ranks, by rank, when they last changed.
    words: Vec<u32>,
    since: Stopwatch,
    /// Time since the failure.
    failed: Option<Stopwatch>,
}

impl Flight {
    pub(super) fn new(reach: &Arc<Reach>, queue: &Queue, label: Label, first: u32, last: u32) -> Self {
        let progress = Progress { words: Vec::new(), since: Stopwatch::start(), failed: None };
        let progress = Mutex::new(progress);
        Flight { reach: Arc::clone(reach), queue: queue.clone(), label, first, last, progress }
    }

    /// Returns why the operation cannot go on, if it cannot.
    fn obstacle(&self, progress: &mut Progress) -> Option<Error> {
        let Reach { health, words, deadline, .. } = &*self.reach;
        let during = During::Operation(self.label.fingerprint, self.label.tag);
        if let Some(verdict) = health.verdict() {
            return Some(verdict.error(during));
        }
        let seen: Vec<u32> = (0..words.ranks()).map(|rank| words.seen(rank)).collect();
        if seen != progress.words {
            progress.words = seen;
            progress.since = Stopwatch::start();
        }
        if progress.since.elapsed() < *deadline {
            return None;
        }
        // The rank that is furthest behind, which may be this one.
        let behind = |rank: &usize| progress.words[*rank].wrapping_sub(self.first) as i32;
        let waiting_for = (0..words.ranks()).min_by_key(behind).map(|rank| health.peers()[rank].clone());
        let error = Error::Deadline { waiting_for, stragglers: Vec::new(), after: *deadline, during };
        health.give_up(&format!("gave up: {error}"));
        Some(error)
    }
}

impl Watch for Flight {
    fn look(&self) -> bool {
        let is_done = has_come(self.reach.words.seen(self.reach.rank), self.last);
        if is_done && !self.reach.words.are_void() {
            return false;
        }
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if progress.failed.is_none()
            && let Some(error) = self.obstacle(&mut progress)
        {
            if let Some(cuda) = CudaQueue::of(&self.queue) {
                cuda.fail(&error);
            }
            progress.failed = Some(Stopwatch::start());
        }
        if is_done {
            // Until it is known who has given up what.
            return progress.failed.is_none();
        }
        if progress.failed.as_mut().is_some_and(|failed| failed.elapsed() > PATIENCE) {
            // Again and again: a rank that lives may write what it was about to.
            self.reach.words.release(self.reach.step.load(Ordering::Relaxed));
        }
        true
    }
}
