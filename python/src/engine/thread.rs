//! The thread that owns the engine, which cannot move between threads.
//!
//! Requests from Python run in order, and the caller waits; the training thread and the threads of autograd may all
//! send requests. This thread never holds the interpreter lock.

use crate::communicator::Communicator;
use crate::error::{exception, usage};
use crate::fork::Generation;
use crate::work::{interruptible_within, wait};
use crate::world::Closes;
use hexagram::{DataParallel, Error, Result, World};
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

type EngineJob = Box<dyn FnOnce(&mut DataParallel) + Send>;

/// Thread with an engine.
pub(super) struct EngineThread {
    generation: Generation,
    /// Queue of jobs and the thread that runs them; `None` after it has ended.
    running: Mutex<Option<RunningThread>>,
}

struct RunningThread {
    jobs: Sender<EngineJob>,
    thread: JoinHandle<()>,
    /// World whose deadline bounds the wait at the end.
    world: World,
}

/// Engines that may still exist when the interpreter ends.
static ENGINES: Mutex<Vec<Weak<EngineThread>>> = Mutex::new(Vec::new());

/// Ends all engines, when the interpreter ends: before their worlds are left. Returns the first error.
pub(crate) fn end_all(py: Python<'_>) -> PyResult<()> {
    let engines = std::mem::take(&mut *locked(&ENGINES));
    let ended: Vec<PyResult<()>> =
        engines.iter().filter_map(Weak::upgrade).map(|engine| engine.end(py)).collect();
    ended.into_iter().collect()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EngineThread {
    /// Starts the thread, with the engine that `make` creates on it from another communicator of the group. A
    /// collective call.
    pub(super) fn start(
        py: Python<'_>,
        group: &Communicator,
        make: impl FnOnce(&hexagram::Communicator) -> Result<DataParallel> + Send + 'static,
    ) -> PyResult<Arc<Self>> {
        let (jobs, todo) = channel::<EngineJob>();
        let (tell, told) = channel();
        let own = group.member().get(py)?.world;
        let channel = group.channel(py)?;
        let run = move || {
            match channel.open().and_then(|comm| make(&comm)) {
                Ok(mut engine) => {
                    // The caller may have been interrupted.
                    let _ = tell.send(Ok(()));
                    todo.into_iter().for_each(|job| job(&mut engine));
                    // Unfinished work of the last step would otherwise end as an error on all ranks. If it fails, no
                    // caller is left to receive the error.
                    let _ = engine.wait_for_all();
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread =
            thread::Builder::new().name("hexagram-engine".to_owned()).spawn(run).map_err(|cause| {
                exception(
                    py,
                    &Error::system("start a thread", cause, "raise the limit of threads (ulimit -u)"),
                )
            })?;
        if let Err(error) = answer(py, told) {
            // It may be the last reference to a world that was left meanwhile.
            py.detach(|| drop(own));
            return Err(error);
        }
        let running = Mutex::new(Some(RunningThread { jobs, thread, world: own }));
        let engine = Arc::new(EngineThread { generation: Generation::now(), running });
        let mut engines = locked(&ENGINES);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        let closes: Arc<dyn Closes> = Arc::clone(&engine) as _;
        group.member().watch(Arc::downgrade(&closes));
        Ok(engine)
    }

    /// Runs a job with the engine on the thread, and waits for its result.
    pub(super) fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut DataParallel) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        answer(py, self.begin(py, work)?)
    }

    /// Starts a job with the engine on the thread; returns the receiver of its result.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut DataParallel) -> Result<T> + Send + 'static,
    ) -> PyResult<Receiver<Result<T>>> {
        self.generation.check(py)?;
        let (tell, told) = channel();
        let job: EngineJob = Box::new(move |engine| drop(tell.send(work(engine))));
        match &*locked(&self.running) {
            // A thread that has ended drops the job, and with it the sender of its result.
            Some(running) => drop(running.jobs.send(job)),
            None => return Err(usage(py, "this engine was closed", "make another DataParallel")),
        }
        Ok(told)
    }

    /// Returns true after [`end`](Self::end), and in a later generation of the world.
    pub(super) fn is_closed(&self) -> bool {
        locked(&self.running).is_none()
    }

    /// Ends the engine and waits for its thread, at most for twice the deadline of the world.
    pub(super) fn end(&self, py: Python<'_>) -> PyResult<()> {
        if !self.generation.is_now() {
            return Ok(());
        }
        let Some(RunningThread { jobs, thread, world }) = locked(&self.running).take() else { return Ok(()) };
        drop(jobs);
        // Its last job, and the unfinished work of the last step, each have the deadline of the world.
        let limit = world.deadline().saturating_mul(2);
        interruptible_within(py, limit, "the engine", move || {
            drop(thread.join());
            drop(world);
        })
    }
}

/// Ends the engine before the next generation of its world begins. Its operations have failed by then.
impl Closes for EngineThread {
    fn close(&self) -> Result<()> {
        let Some(RunningThread { jobs, thread, world }) = locked(&self.running).take() else { return Ok(()) };
        drop(jobs);
        // Its thread does not end while the program evaluates the mean.
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < world.deadline() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        if !self.generation.is_now() {
            // The thread belongs to the parent.
            std::mem::forget(locked(&self.running).take());
        }
    }
}

/// Waits for the outcome of a job.
pub(crate) fn answer<T: Send>(py: Python<'_>, told: Receiver<Result<T>>) -> PyResult<T> {
    match outcome(py, told)? {
        Some(outcome) => outcome.map_err(|error| exception(py, &error)),
        None => Err(usage(py, "the engine thread has ended", "see the message that it printed")),
    }
}

/// Waits for the result of a job; `None` if it has ended without one. Fails only if the wait was interrupted.
pub(super) fn outcome<T: Send>(py: Python<'_>, told: Receiver<Result<T>>) -> PyResult<Option<Result<T>>> {
    let outcome = wait(py, None, move |slice| match told.recv_timeout(slice) {
        Ok(outcome) => Some(Some(outcome)),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(None),
    })?;
    Ok(outcome.flatten())
}
