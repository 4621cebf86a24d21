//! The threads of a loader: workers, and the pinning thread.
//!
//! ```text
//! caller -> tasks (one queue, or one a worker) -> workers -> [pinning thread] -> caller
//! ```
//!
//! Threads instead of processes: samples need no serialization and no shared memory, a dataset is opened once, the
//! process does not fork, and a failed thread can report its error. Other loaders use processes because of the
//! interpreter lock, which does not exist here.

use super::context::{WorkerContext, WorkerInfo, WorkerStatus, guarded};
use super::fetch::{FetchOutcome, FetchTask, Fetchers, Made};
use crate::dataset::Cause;
use crate::loader::batch::Pool;
use crate::loader::bell::BatchBell;
use crate::loader::error::{Actor, LoaderError};
use crate::loader::options::WorkerInit;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two warnings of an unlimited wait, and maximum wait for workers to end.
pub(crate) const LATE: Duration = Duration::from_secs(300);

/// Stage that each batch passes on its way to the caller.
pub(super) type PinStage<B> = Arc<dyn Fn(B) -> Result<B, Cause> + Send + Sync>;

/// Common parts of all workers.
pub(crate) struct Recipe<B> {
    pub(crate) fetchers: Fetchers<B>,
    pub(crate) init: Option<WorkerInit>,
    pub(crate) pin: Option<PinStage<B>>,
    pub(crate) workers: usize,
    pub(crate) base_seed: u64,
    pub(crate) patience: Option<Duration>,
    pub(crate) bell: BatchBell,
    /// Memory of batches.
    pub(crate) pool: Pool,
    /// Memory of samples: the same as `pool`, unless the caller provides memory for batches.
    pub(crate) samples: Pool,
}

/// Threads at work.
pub(crate) struct Workers<B> {
    /// Sending ends of the queues; dropping them ends the workers.
    lanes: Vec<WorkerLane>,
    results: Receiver<FetchOutcome<B>>,
    /// Status of every thread, the pinning thread last.
    statuses: Vec<(Actor, Arc<WorkerStatus>)>,
    generation: Arc<AtomicU64>,
    /// Dropped to interrupt pauses.
    closing: Option<Sender<()>>,
    /// Disconnected once all threads have ended.
    running: Receiver<()>,
    threads: Vec<JoinHandle<()>>,
    patience: Option<Duration>,
}

struct WorkerLane {
    tasks: Sender<FetchTask>,
    /// Receiving end, to cancel tasks.
    queue: Receiver<FetchTask>,
}

impl<B: Send + 'static> Workers<B> {
    pub(crate) fn start(recipe: &Recipe<B>, lanes: usize) -> Result<Self, LoaderError> {
        let queues = (0..lanes).map(|_| unbounded()).map(|(tasks, queue)| WorkerLane { tasks, queue });
        let (alive, running) = unbounded();
        let (closing, closed) = unbounded();
        let (made, results) = unbounded();
        let mut workers = Workers {
            lanes: queues.collect(),
            results,
            statuses: (0..recipe.workers)
                .map(Actor::Worker)
                .chain(recipe.pin.is_some().then_some(Actor::Pinner))
                .map(|who| (who, Arc::default()))
                .collect(),
            generation: Arc::default(),
            closing: Some(closing),
            running,
            threads: Vec::new(),
            patience: recipe.patience,
        };
        // On an error, the drop closes the queues before it waits for the threads that were started.
        workers.start_threads(recipe, (made, alive, closed))?;
        Ok(workers)
    }

    /// Starts all threads.
    fn start_threads(
        &mut self,
        recipe: &Recipe<B>,
        (made, alive, closed): (Sender<FetchOutcome<B>>, Sender<()>, Receiver<()>),
    ) -> Result<(), LoaderError> {
        // With a pinning stage, the pinning thread rings the bell instead of the workers.
        let bell = if recipe.pin.is_none() { recipe.bell.clone() } else { BatchBell::default() };
        for id in 0..recipe.workers {
            let context = WorkerContext {
                who: Actor::Worker(id),
                info: WorkerInfo { id, workers: recipe.workers, epoch: 0, base_seed: recipe.base_seed },
                pool: recipe.pool.clone(),
                samples: recipe.samples.clone(),
                status: self.statuses[id].1.clone(),
                generation: self.generation.clone(),
                closing: closed.clone(),
            };
            let queue = self.lanes[id % self.lanes.len()].queue.clone();
            let worker =
                WorkerThread { queue, made: made.clone(), bell: bell.clone(), _alive: alive.clone() };
            let fetchers = recipe.fetchers.clone();
            let init = recipe.init.clone();
            self.threads.push(spawn(Actor::Worker(id), move || worker.serve(context, &fetchers, init))?);
        }
        match recipe.pin.clone() {
            Some(stage) => self.pin(stage, recipe.bell.clone(), alive),
            None => Ok(()),
        }
    }

    /// Inserts the pinning thread between the workers and the caller.
    fn pin(&mut self, stage: PinStage<B>, bell: BatchBell, alive: Sender<()>) -> Result<(), LoaderError> {
        let (pinned, results) = unbounded();
        let made = std::mem::replace(&mut self.results, results);
        let generation = self.generation.clone();
        let status = self.statuses.last().map(|(_, status)| status.clone()).unwrap_or_default();
        let thread = spawn(Actor::Pinner, move || {
            let _alive = alive;
            for done in made {
                if done.generation != generation.load(Ordering::Relaxed) {
                    continue;
                }
                status.collating();
                let done = pin(done, &stage);
                status.idle();
                if pinned.send(done).is_err() {
                    return;
                }
                bell.ring();
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the current generation of tasks and results.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&self, task: FetchTask) {
        // A queue loses its reader only if its worker has ended, which the results show.
        let _ = self.lanes[task.lane].tasks.send(task);
    }

    /// Returns the next current result, if any.
    pub(crate) fn try_receive(&self) -> Option<FetchOutcome<B>> {
        self.results.try_iter().find(|done| done.generation == self.generation())
    }

    /// Waits for the next result.
    pub(crate) fn receive(&self, deadline: Instant) -> Result<FetchOutcome<B>, LoaderError> {
        loop {
            match self.results.recv_deadline(deadline) {
                Ok(done) if done.generation != self.generation() => {}
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) => return Err(self.timeout()),
                Err(RecvTimeoutError::Disconnected) => return Err(LoaderError::Gone),
            }
        }
    }

    /// Creates the error for a late batch, with the current work of each worker.
    pub(crate) fn timeout(&self) -> LoaderError {
        LoaderError::Timeout { after: self.patience.unwrap_or(LATE), doing: self.doing() }
    }

    /// Warns of a late batch if the wait is unlimited.
    pub(crate) fn warn_of_wait(&self) {
        tracing::warn!("a loader has waited a further {LATE:?} for a batch: {}", self.doing());
    }

    fn doing(&self) -> String {
        let doing = self.statuses.iter().map(|(who, status)| status.describe(*who));
        doing.collect::<Vec<_>>().join(", ")
    }

    /// Cancels the tasks that have not begun, and discards the results of the others.
    pub(crate) fn cancel(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.lanes.iter().for_each(|lane| lane.queue.try_iter().for_each(drop));
        self.results.try_iter().for_each(drop);
    }
}

impl<B> Drop for Workers<B> {
    /// Waits for the threads, each of which ends after its current sample.
    fn drop(&mut self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.lanes.clear();
        self.closing = None;
        let patience = self.patience.unwrap_or(LATE);
        if self.running.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "workers of a dropped loader are still busy after {patience:?}; they will end with the process"
            );
            return;
        }
        // The threads have only their thread-local destructors left to run.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Queue ends of a worker thread.
struct WorkerThread<B> {
    queue: Receiver<FetchTask>,
    made: Sender<FetchOutcome<B>>,
    bell: BatchBell,
    /// Dropped when the thread ends.
    _alive: Sender<()>,
}

impl<B: Send + 'static> WorkerThread<B> {
    fn serve(self, mut context: WorkerContext, fetchers: &Fetchers<B>, init: Option<WorkerInit>) {
        let mut fetcher = fetchers();
        let mut init = init;
        for task in &self.queue {
            if context.is_stale(task.generation) {
                continue;
            }
            // Only now, so that the caller that asks for a batch gets the error.
            context.info.epoch = task.epoch;
            let failed = init.as_ref().and_then(|init| guarded(|| init(&context.info)).err());
            let done = match failed {
                Some(cause) => {
                    Some(task.failed(LoaderError::Init { worker: context.who, cause: cause.into() }))
                }
                None => {
                    init = None;
                    fetcher.fetch(task, &mut context)
                }
            };
            context.status.idle();
            if let Some(done) = done {
                if self.made.send(done).is_err() {
                    return;
                }
                self.bell.ring();
            }
        }
    }
}

/// Starts a thread.
fn spawn(who: Actor, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, LoaderError> {
    let spawned = Builder::new().name(format!("loader {who}")).spawn(body);
    spawned.map_err(|cause| LoaderError::Spawn { who, cause: Arc::new(cause) })
}

/// Passes a batch through the pinning stage.
pub(crate) fn pin<B>(done: FetchOutcome<B>, stage: &PinStage<B>) -> FetchOutcome<B> {
    let FetchOutcome { made: Made::Batch(batch), epoch, .. } = done else { return done };
    let made = match guarded(|| stage(batch)) {
        Ok(batch) => Made::Batch(batch),
        Err(cause) => Made::Failed(LoaderError::Pin { epoch, cause: cause.into() }),
    };
    FetchOutcome { made, ..done }
}
