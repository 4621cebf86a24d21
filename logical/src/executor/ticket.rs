//! Tickets: the outcome of a job, for any waiting thread.

use super::core::Core;
use crate::{Error, Result};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A running or finished job of an [`Executor`](super::Executor). Clones refer to the same job; dropping them all
/// does not end it.
pub struct Ticket<T> {
    core: Arc<Core>,
    outcome: Arc<JobOutcome<T>>,
}

impl<T> Clone for Ticket<T> {
    fn clone(&self) -> Self {
        Ticket { core: Arc::clone(&self.core), outcome: Arc::clone(&self.outcome) }
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

impl<T> Ticket<T> {
    pub(super) fn new(core: Arc<Core>, outcome: Arc<JobOutcome<T>>) -> Self {
        Ticket { core, outcome }
    }

    /// Returns true once the job has ended, successfully or not. Does not drive.
    pub fn is_done(&self) -> bool {
        self.outcome.is_done()
    }

    /// Waits until the job has ended, and returns its outcome, or `None` if `limit` passes first. The job then
    /// continues: only the deadlines of its operations end it. Without a limit, those deadlines also bound the wait.
    ///
    /// This thread may drive during the wait, including the jobs of other threads: do not hold a lock that a job or a
    /// callback of this executor takes.
    ///
    /// # Errors
    /// The error of the job. [`Error::Usage`] in a job or a callback of this executor that waits for an unfinished
    /// job, and in a forked process.
    pub fn wait(&self, limit: Option<Duration>) -> Option<Result<T>>
    where
        T: Clone,
    {
        if !self.outcome.is_done()
            && let Err(error) = self.core.wait(&|| self.outcome.is_done(), limit)
        {
            return Some(Err(error));
        }
        self.outcome()
    }

    /// Returns the outcome; `None` before the end.
    pub fn outcome(&self) -> Option<Result<T>>
    where
        T: Clone,
    {
        self.outcome.lock().result.clone()
    }

    /// Runs `callback` when the job has ended: on this thread if it already has, otherwise on the driving thread,
    /// before driving continues. Therefore it must be short, and must not wait: set a flag, send a message or submit
    /// a job. Callbacks run in the order in which they were added, when the outcome is available. A panic in a
    /// callback is caught, after the panic handler has printed it.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        let mut progress = self.outcome.lock();
        match progress.result {
            None => progress.callbacks.push(Box::new(callback)),
            Some(_) => {
                drop(progress);
                callback();
            }
        }
    }
}

type JobCallback = Box<dyn FnOnce() + Send>;

/// Shared place of the outcome of a job.
pub(super) struct JobOutcome<T> {
    is_done: AtomicBool,
    progress: Mutex<JobProgress<T>>,
}

struct JobProgress<T> {
    result: Option<Result<T>>,
    callbacks: Vec<JobCallback>,
}

impl<T> Default for JobOutcome<T> {
    fn default() -> Self {
        let progress = Mutex::new(JobProgress { result: None, callbacks: Vec::new() });
        JobOutcome { is_done: AtomicBool::new(false), progress }
    }
}

impl<T> JobOutcome<T> {
    fn lock(&self) -> MutexGuard<'_, JobProgress<T>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Stores the outcome, and runs the callbacks. Only the first call has an effect.
    pub(super) fn complete(&self, result: Result<T>) {
        let mut progress = self.lock();
        if progress.result.is_some() {
            return;
        }
        progress.result = Some(result);
        let callbacks = std::mem::take(&mut progress.callbacks);
        drop(progress);
        self.is_done.store(true, Ordering::Release);
        for callback in callbacks {
            // The panic handler has printed it, and the job has already ended.
            let _ = catch_unwind(AssertUnwindSafe(callback));
        }
    }
}

/// A job that can be ended from outside.
pub(super) trait Fail: Send + Sync {
    /// Ends it with an error, unless it has ended.
    fn fail(&self, error: Error);
}

impl<T: Send> Fail for JobOutcome<T> {
    fn fail(&self, error: Error) {
        self.complete(Err(error));
    }
}
