//! What is known about the ranks of a world: who has left, and who failed first.
//!
//! The first failure is the *verdict*: it ends every operation of every rank with an error that names the culprit.
//! Transports only ever suspect (a closed socket, a silent ring); whoever watches the processes decides.

use crate::doorbell::Bell;
use crate::error::Peer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The first failure of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Who failed.
    pub culprit: Peer,
    /// How, as a verb phrase.
    pub cause: String,
}

/// Tells the other processes of a world about a failure.
pub(crate) trait Reporter: Send + Sync {
    fn report(&self, culprit: usize, cause: &str);
}

/// The state of all ranks; one a process, so shared where ranks are threads.
struct Board {
    peers: Vec<Peer>,
    left: Vec<AtomicBool>,
    verdict: OnceLock<Verdict>,
    bells: Mutex<Vec<Weak<dyn Bell>>>,
}

impl Board {
    fn ring(&self) {
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
    }
}

/// What one rank knows about all ranks.
pub struct Health {
    rank: usize,
    board: Arc<Board>,
    reporter: OnceLock<Arc<dyn Reporter>>,
}

impl Health {
    /// The view of one rank, for a world whose ranks are processes. Everyone is well.
    pub(crate) fn new(rank: usize, peers: Vec<Peer>) -> Self {
        let left = peers.iter().map(|_| AtomicBool::new(false)).collect();
        let board = Board { peers, left, verdict: OnceLock::new(), bells: Mutex::default() };
        Health { rank, board: Arc::new(board), reporter: OnceLock::new() }
    }

    /// The view of another rank in the same process.
    pub(crate) fn of_rank(&self, rank: usize) -> Self {
        Health { rank, board: Arc::clone(&self.board), reporter: OnceLock::new() }
    }

    /// Names and processes, by rank.
    pub fn peers(&self) -> &[Peer] {
        &self.board.peers
    }

    /// The first failure, if there was one.
    pub fn verdict(&self) -> Option<&Verdict> {
        self.board.verdict.get()
    }

    /// Whether `rank` has finished and said so.
    pub fn has_left(&self, rank: usize) -> bool {
        self.board.left[rank].load(Ordering::Acquire)
    }

    /// Has this rank give up, and tells the others why: `cause` is a verb phrase. Only the first failure counts.
    pub fn give_up(&self, cause: &str) {
        self.blame(self.rank, cause);
    }

    /// Names the rank that failed, and tells the others. Only the first failure counts.
    pub(crate) fn blame(&self, culprit: usize, cause: &str) {
        if self.condemn(culprit, cause)
            && let Some(reporter) = self.reporter.get()
        {
            reporter.report(culprit, cause);
        }
    }

    /// Sets who carries failures to other processes; the first stays.
    pub(crate) fn set_reporter(&self, reporter: Arc<dyn Reporter>) {
        let _ = self.reporter.set(reporter);
    }

    /// Records the verdict unless there is one, and wakes every thread that waits. Whether it was the first.
    pub(crate) fn condemn(&self, rank: usize, cause: &str) -> bool {
        let culprit = self.board.peers[rank].clone();
        let first = self.board.verdict.set(Verdict { culprit, cause: cause.to_owned() }).is_ok();
        if first {
            self.board.ring();
        }
        first
    }

    /// Records that `rank` has finished, and wakes every thread that waits for it in vain.
    pub(crate) fn leave(&self, rank: usize) {
        self.board.left[rank].store(true, Ordering::Release);
        self.board.ring();
    }

    /// Has `bell` rung at every change.
    pub(crate) fn wake(&self, bell: Weak<dyn Bell>) {
        let mut bells = self.board.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(bell);
    }
}
