//! Context of a worker, and the guard around user code: no panic ends a worker.

use super::generator::SampleGenerator;
use crate::dataset::Cause;
use crate::loader::batch::Pool;
use crate::loader::error::{Actor, Panicked};
use crossbeam_channel::{Receiver, never};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A worker of a loader, as in PyTorch's `get_worker_info()`. Without workers, the calling thread counts as the only
/// worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Number of the worker, from 0.
    pub id: usize,
    /// Number of workers: at least 1.
    pub workers: usize,
    /// Current epoch.
    pub epoch: u64,
    /// Seed of the loader.
    pub base_seed: u64,
}

impl WorkerInfo {
    /// Returns a seed for this worker in this epoch. Random numbers from it change with the number of workers; those
    /// of [`Fetch::generator`](crate::dataset::Fetch::generator) do not.
    pub fn seed(&self) -> u64 {
        SampleGenerator::new(!self.base_seed, self.epoch, self.id).next_u64()
    }
}

/// Context of a loading thread.
pub(crate) struct WorkerContext {
    pub(super) who: Actor,
    pub(super) info: WorkerInfo,
    /// Memory of batches.
    pub(crate) pool: Pool,
    /// Memory of samples.
    pub(crate) samples: Pool,
    /// Current activity of the thread.
    pub(super) status: Arc<WorkerStatus>,
    /// Counts cancellations; tasks of an earlier generation are cancelled.
    pub(super) generation: Arc<AtomicU64>,
    /// Becomes ready when the loader is dropped.
    pub(super) closing: Receiver<()>,
}

impl WorkerContext {
    /// Creates the context of the calling thread.
    pub(crate) fn of_caller(base_seed: u64, pool: Pool, samples: Pool) -> Self {
        WorkerContext {
            who: Actor::Caller,
            info: WorkerInfo { id: 0, workers: 1, epoch: 0, base_seed },
            pool,
            samples,
            status: Arc::default(),
            generation: Arc::default(),
            closing: never(),
        }
    }

    pub(super) fn is_stale(&self, generation: u64) -> bool {
        self.generation.load(Ordering::Relaxed) != generation
    }

    /// Waits before a retry, unless the loader is dropped.
    pub(super) fn pause(&self, pause: Duration) {
        let _ = self.closing.recv_timeout(pause);
    }
}

/// Current work of a worker, for error messages.
pub(super) struct WorkerStatus {
    /// The item being loaded, or one of the constants below.
    item: AtomicU64,
    /// Start of the current work, in milliseconds after `start`.
    since: AtomicU64,
    start: Instant,
}

const IDLE: u64 = u64::MAX;
const COLLATING: u64 = u64::MAX - 1;

impl Default for WorkerStatus {
    fn default() -> Self {
        WorkerStatus { item: AtomicU64::new(IDLE), since: AtomicU64::new(0), start: Instant::now() }
    }
}

impl WorkerStatus {
    pub(super) fn loading(&self, item: usize) {
        self.set(item as u64);
    }

    pub(super) fn collating(&self) {
        self.set(COLLATING);
    }

    pub(crate) fn idle(&self) {
        self.set(IDLE);
    }

    fn set(&self, item: u64) {
        self.since.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.item.store(item, Ordering::Relaxed);
    }

    /// Describes the current work, for an error.
    pub(super) fn describe(&self, who: Actor) -> String {
        let since = Duration::from_millis(self.since.load(Ordering::Relaxed));
        let so_far = self.start.elapsed().saturating_sub(since);
        match self.item.load(Ordering::Relaxed) {
            IDLE => format!("{who} is idle"),
            COLLATING => format!("{who} has been busy with a batch for {so_far:.1?}"),
            item => format!("{who} has been loading sample {item} for {so_far:.1?}"),
        }
    }
}

/// Runs user code, and turns a panic into an error.
pub(super) fn guarded<T>(run: impl FnOnce() -> Result<T, Cause>) -> Result<T, Cause> {
    // The dataset must tolerate a panic in the middle of an operation, as with any thread.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Panicked(text.unwrap_or_else(|| "without a message".into())).into())
    })
}
