//! Joint enqueue: the last rank of a process that reaches an operation enqueues it for all of them, step by step.
//!
//! A process has few work queues on a GPU (8, or the value of `CUDA_DEVICE_MAX_CONNECTIONS`, up to 32), which its streams
//! share. Work behind a wait in a work queue waits as well, even if it belongs to a different stream. So a wait for a step must
//! not be enqueued before all work that ends the wait:
//!
//! ```text
//! rank 0   tell step 1                wait for step 1, work, tell step 2                          wait for step 2 …
//! rank 1                tell step 1                                       wait for step 1, work, tell step 2 …
//! ```
//!
//! Then the earliest pending wait always ends soon, however streams share work queues. Ranks of other processes have work
//! queues of their own.

use super::rank_step::RankStep;
use crate::error::{Error, Result};
use crate::runtime;
use crate::waiting::doorbell::Bell;
use crate::waiting::lock::lock;
use crate::waiting::stopwatch::Stopwatch;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Longest wait for a thread that enqueues, and the time between two looks.
const LIMIT: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_micros(100);

/// Groups of ranks of this process that enqueue together, by a number that all ranks of the group have.
static ALL: Mutex<Vec<(u64, Weak<JointEnqueue>)>> = Mutex::new(Vec::new());

/// Ranks of one endpoint that are threads of this process.
pub(super) struct JointEnqueue {
    ranks: Vec<usize>,
    /// Operations that some ranks have reached, by their numbers in the order of all operations.
    open: Mutex<HashMap<u64, Vec<Participant>>>,
}

/// Place of a rank that has reached the operation.
struct Participant {
    rank: usize,
    part: RankStep,
    answer: JointOutcome,
}

/// Answer to a rank that has reached the operation: the outcome, once its part is enqueued.
struct JointOutcome {
    outcome: Arc<Mutex<Option<Result<()>>>>,
    bell: Arc<dyn Bell>,
}

impl JointOutcome {
    fn give(&self, outcome: Result<()>) {
        lock(&self.outcome).get_or_insert(outcome);
        self.bell.ring();
    }
}

impl Drop for JointOutcome {
    /// Ends the waits for a thread that has panicked.
    fn drop(&mut self) {
        if lock(&self.outcome).is_none() {
            self.give(Err(Error::usage(
                "a thread panicked while it enqueued work of other ranks",
                "see its panic message",
            )));
        }
    }
}

impl JointEnqueue {
    /// Returns the group of these ranks, which all of them identify by `number`.
    pub(super) fn of(number: u64, ranks: Vec<usize>) -> Arc<Self> {
        let mut all = lock(&ALL);
        all.retain(|(_, meeting)| meeting.strong_count() > 0);
        let found = all.iter().find(|(other, _)| *other == number).and_then(|(_, meeting)| meeting.upgrade());
        found.unwrap_or_else(|| {
            let meeting = Arc::new(JointEnqueue { ranks, open: Mutex::default() });
            all.push((number, Arc::downgrade(&meeting)));
            meeting
        })
    }

    /// Brings a rank's part in an operation, which has this number in the order of all. If it is the last one, all parts are
    /// enqueued now; otherwise the bell rings when they are.
    pub(super) fn join(
        self: &Arc<Self>,
        number: u64,
        rank: usize,
        part: RankStep,
        bell: &Arc<dyn Bell>,
    ) -> Participation {
        let outcome = Arc::<Mutex<_>>::default();
        let answer = JointOutcome { outcome: Arc::clone(&outcome), bell: Arc::clone(bell) };
        let participant = Participant { rank, part, answer };
        let mut open = lock(&self.open);
        let participants = open.entry(number).or_default();
        participants.push(participant);
        let are_all_here = participants.len() == self.ranks.len();
        let all = if are_all_here { open.remove(&number) } else { None };
        drop(open);
        all.into_iter().for_each(enqueue);
        Participation { meeting: Arc::clone(self), number, rank, outcome }
    }
}

/// Enqueues the parts of all ranks.
fn enqueue(mut participants: Vec<Participant>) {
    // The same order, whichever rank arrives last.
    participants.sort_by_key(|participant| participant.rank);
    match &mut *participants {
        [only] => only.part.enqueue_all(),
        all => {
            let steps = all.iter().map(|participant| participant.part.steps()).max().unwrap_or(0);
            (0..steps).for_each(|step| all.iter_mut().for_each(|participant| participant.part.enqueue(step)));
        }
    }
    for Participant { part, answer, .. } in participants {
        answer.give(part.finish());
    }
}

/// Rank that has reached an operation. It leaves when this is dropped, unless the operation was enqueued.
pub(super) struct Participation {
    meeting: Arc<JointEnqueue>,
    number: u64,
    rank: usize,
    outcome: Arc<Mutex<Option<Result<()>>>>,
}

impl Participation {
    /// Takes the outcome, once the operation is enqueued.
    pub(super) fn outcome(&self) -> Option<Result<()>> {
        lock(&self.outcome).clone()
    }

    /// Returns the ranks of this process that do not participate yet.
    pub(super) fn missing(&self) -> Vec<usize> {
        let open = lock(&self.meeting.open);
        let Some(participants) = open.get(&self.number) else { return Vec::new() };
        let is_missing = |rank: &usize| participants.iter().all(|participant| participant.rank != *rank);
        self.meeting.ranks.iter().copied().filter(is_missing).collect()
    }
}

impl Drop for Participation {
    fn drop(&mut self) {
        let mut open = lock(&self.meeting.open);
        let Some(participants) = open.get_mut(&self.number) else {
            drop(open);
            return self.wait();
        };
        let left: Vec<_> = participants.extract_if(.., |participant| participant.rank == self.rank).collect();
        if participants.is_empty() {
            open.remove(&self.number);
        }
        drop(open);
        // Dropping their content may need the lock.
        drop(left);
    }
}

impl Participation {
    /// Waits until another thread has enqueued this rank's part, which it is doing: the next operation counts its steps from
    /// there. If the driver blocks that thread, the streams will not reach the next operation either.
    fn wait(&self) {
        let mut waited = Stopwatch::start();
        while lock(&self.outcome).is_none() && waited.elapsed() < LIMIT {
            runtime::sleep(TICK);
        }
    }
}

/// Returns a number that no other endpoint of this process has had.
pub(crate) fn number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}
