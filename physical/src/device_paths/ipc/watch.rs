//! The watch on an enqueued operation: the host releases a stream that waits for a dead rank, or for ever.
//!
//! The failure is reported first, and the release follows a moment later. After the release, a stream computes wrong results,
//! and notifies the streams of other ranks of its steps as usual. By then those ranks have also received the failure, and
//! discard the results. If a rank receives the failure later, it sees the mark that was written before the release.

use super::collectives::EndpointReach;
use super::sync_pages::has_come;
use crate::device::Queue;
use crate::device::cuda::{CudaQueue, FailureWatch};
use crate::error::{Error, ErrorContext};
use crate::transport::Label;
use crate::waiting::stopwatch::Stopwatch;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time from a failure to the release of streams: all ranks look several times meanwhile.
const PATIENCE: Duration = Duration::from_millis(250);

/// Words for which the stream of an operation waits.
pub(super) enum AwaitedWords {
    /// Steps of all ranks: of a collective, the step before its own, and its last one.
    Steps { first: u32, last: u32 },
    /// Messages of one rank: the last number among its messages, and the last number among all messages taken here.
    Message { from: usize, number: u32, taken: u32 },
}

/// An operation in flight.
pub(super) struct OperationInFlight {
    reach: Arc<EndpointReach>,
    queue: Queue,
    label: Label,
    awaited: AwaitedWords,
    progress: Mutex<OperationProgress>,
}

/// Progress of an operation.
struct OperationProgress {
    /// The awaited words, as read at their last change.
    words: Vec<u32>,
    since: Stopwatch,
    /// Time since the failure.
    failed: Option<Stopwatch>,
}

impl OperationInFlight {
    pub(super) fn new(
        reach: &Arc<EndpointReach>,
        queue: &Queue,
        label: Label,
        awaited: AwaitedWords,
    ) -> Self {
        let progress = OperationProgress { words: Vec::new(), since: Stopwatch::start(), failed: None };
        let progress = Mutex::new(progress);
        OperationInFlight { reach: Arc::clone(reach), queue: queue.clone(), label, awaited, progress }
    }

    /// Returns true once the stream has done all of it.
    fn is_done(&self) -> bool {
        let EndpointReach { words, rank, .. } = &*self.reach;
        match self.awaited {
            AwaitedWords::Steps { last, .. } => has_come(words.steps(*rank), last),
            AwaitedWords::Message { taken, .. } => has_come(words.taken(*rank), taken),
        }
    }

    /// Returns the words whose change is progress.
    fn words(&self) -> Vec<u32> {
        let EndpointReach { words, rank, .. } = &*self.reach;
        match self.awaited {
            AwaitedWords::Steps { .. } => (0..words.ranks()).map(|rank| words.steps(rank)).collect(),
            AwaitedWords::Message { from, .. } => vec![words.sent(from), words.taken(*rank)],
        }
    }

    /// Returns the rank that is furthest behind, which may be this one.
    fn last_rank(&self) -> Option<usize> {
        let EndpointReach { words, rank, .. } = &*self.reach;
        match self.awaited {
            AwaitedWords::Steps { first, .. } => {
                (0..words.ranks()).min_by_key(|rank| words.steps(*rank).wrapping_sub(first) as i32)
            }
            AwaitedWords::Message { from, number, .. } => {
                Some(if has_come(words.sent(from), number) { *rank } else { from })
            }
        }
    }

    /// Returns the reason if the operation cannot continue.
    fn obstacle(&self, progress: &mut OperationProgress) -> Option<Error> {
        let EndpointReach { health, deadline, .. } = &*self.reach;
        let context = ErrorContext::Operation(self.label.fingerprint, self.label.tag);
        if let Some(verdict) = health.verdict() {
            return Some(verdict.error(context));
        }
        let seen = self.words();
        if seen != progress.words {
            progress.words = seen;
            progress.since = Stopwatch::start();
        }
        if progress.since.elapsed() < *deadline {
            return None;
        }
        let waiting_for = self.last_rank().map(|rank| health.peers()[rank].clone());
        let error = Error::Deadline { waiting_for, stragglers: Vec::new(), after: *deadline, context };
        health.fail_self(&format!("gave up: {error}"));
        Some(error)
    }

    /// Releases all streams of this rank that wait for other ranks.
    fn release(&self) {
        let EndpointReach { words, step, awaited, .. } = &*self.reach;
        words.release(step.load(Ordering::Relaxed), |rank| awaited[rank].load(Ordering::Relaxed));
    }
}

impl FailureWatch for OperationInFlight {
    fn look(&self) -> bool {
        let is_done = self.is_done();
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
            // Until all ranks know which operations failed.
            return progress.failed.is_none();
        }
        if progress.failed.as_mut().is_some_and(|failed| failed.elapsed() > PATIENCE) {
            // Repeatedly: a live rank may still complete a pending write.
            self.release();
        }
        true
    }
}
