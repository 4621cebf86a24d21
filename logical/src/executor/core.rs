//! The core of an executor: its commands, start and end.

mod turns;

use super::GroupHandle;
use super::options::{Awaited, Driving, ExecutorOptions};
use super::reactor::{Reactor, ReactorCommand, SubmittedJob};
use crate::runtime;
use crate::{Communicator, Error, Result, TransportKind};
use hexagram_physical::transport::Bell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// State shared by all handles and tickets of an executor.
pub(super) struct Core {
    /// Process that started it.
    process: u32,
    options: ExecutorOptions,
    /// Wakes the driving thread.
    bell: Arc<dyn Bell>,
    state: Mutex<CoreState>,
    /// Notified when a job has ended or the reactor is back, if a thread waits.
    changed: Condvar,
    /// Notified when the background thread has work.
    work: Condvar,
    /// True if there are commands, so that the driving thread can check without the lock.
    has_commands: AtomicBool,
    /// Number of jobs that have not ended, and of waiting threads. Written under the lock.
    pending: AtomicUsize,
    waiting: AtomicUsize,
    /// True once the last handle was dropped in a job or a callback.
    is_left: AtomicBool,
}

struct CoreState {
    /// Absent while a thread drives, and after the end.
    reactor: Option<Reactor>,
    commands: Vec<ReactorCommand>,
    stage: ShutdownStage,
    thread: Option<runtime::Thread>,
}

/// Progress of the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownStage {
    Open,
    /// New jobs are refused, and a thread waits for the running ones.
    Closing,
    /// The background thread closes the endpoint, and ends.
    Over,
}

impl Core {
    /// Opens the communicator, and starts the background thread.
    pub(super) fn start(
        transport: TransportKind,
        options: ExecutorOptions,
        open: impl FnOnce() -> Result<Communicator> + Send + 'static,
    ) -> Result<(Arc<Core>, GroupHandle)> {
        let driving = if transport.may_change_threads() { options.driving } else { Driving::OneThread };
        let options = ExecutorOptions { driving, ..options };
        let (sender, receiver) = mpsc::channel();
        let background = move || {
            let opened = open().map(|comm| {
                comm.set_movable(options.driving == Driving::Waiting);
                Core::around(comm, options)
            });
            let core = opened.as_ref().ok().map(|(core, _)| Arc::clone(core));
            // The starting thread waits for the result.
            let _ = sender.send(opened);
            if let Some(core) = core {
                core.background();
            }
        };
        let thread = runtime::spawn("hexagram-executor", background)?;
        let ended = || Error::usage("the thread of an executor ended at its start", "see its panic message");
        let (core, handle) = runtime::receive(&receiver).map_err(|_| ended())??;
        core.lock().thread = Some(thread);
        Ok((core, handle))
    }

    pub(super) fn around(comm: Communicator, options: ExecutorOptions) -> (Arc<Core>, GroupHandle) {
        let bell = comm.bell();
        let (reactor, world) = Reactor::new(comm);
        let state = CoreState {
            reactor: Some(reactor),
            commands: Vec::new(),
            stage: ShutdownStage::Open,
            thread: None,
        };
        let core = Core {
            process: std::process::id(),
            options,
            bell,
            state: Mutex::new(state),
            changed: Condvar::new(),
            work: Condvar::new(),
            has_commands: AtomicBool::new(false),
            pending: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            is_left: AtomicBool::new(false),
        };
        (Arc::new(core), world)
    }

    fn lock(&self) -> MutexGuard<'_, CoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails in a forked process: the endpoint belongs to its parent.
    fn check_process(&self) -> Result<()> {
        if self.is_of_this_process() {
            return Ok(());
        }
        let what =
            format!("this process was forked from process {}, whose communicators it shares", self.process);
        Err(Error::usage(what, "communicate in that process only, or start workers by spawn instead of fork"))
    }

    /// Marks this process as forked.
    #[cfg(test)]
    pub(super) fn pretend_forked(&mut self) {
        self.process += 1;
    }

    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Submits a job, which fails if the executor does not accept it.
    pub(super) fn submit(&self, job: SubmittedJob) {
        if let Err(error) = self.check_process() {
            return job.outcome.fail(error);
        }
        let mut state = self.lock();
        if state.stage != ShutdownStage::Open {
            drop(state);
            return job
                .outcome
                .fail(Error::usage("the executor was shut down", "submit jobs before the shutdown"));
        }
        self.pending.fetch_add(1, Ordering::AcqRel);
        let wakes = job.options.awaited == Awaited::Later || self.options.driving == Driving::OneThread;
        self.command(&mut state, ReactorCommand::Run(job), wakes);
    }

    pub(super) fn release(&self, group: u64) {
        if self.is_of_this_process() {
            // The next driving thread executes it.
            self.command(&mut self.lock(), ReactorCommand::Release(group), false);
        }
    }

    pub(super) fn abort(&self, error: Error) {
        if self.is_of_this_process() {
            self.command(&mut self.lock(), ReactorCommand::Abort(error), true);
        }
    }

    /// Queues a command for the next driving thread, and wakes a thread if `wakes`.
    fn command(&self, state: &mut CoreState, command: ReactorCommand, wakes: bool) {
        state.commands.push(command);
        self.has_commands.store(true, Ordering::Release);
        match &state.reactor {
            None => self.bell.ring(),
            Some(_) if wakes => self.work.notify_one(),
            Some(_) => {}
        }
    }

    /// Returns true if the background thread must end the executor, because its last handle was dropped on a thread
    /// that must not wait.
    fn is_to_finish(&self, state: &CoreState) -> bool {
        state.stage == ShutdownStage::Closing && self.is_left.load(Ordering::Acquire)
    }

    /// Ends the executor according to its options; on the driving thread, which could not wait, immediately.
    pub(super) fn end(core: &Arc<Core>) {
        if !core.is_of_this_process() {
            return;
        }
        if std::thread::panicking() {
            core.abort(Error::usage(
                "a thread that uses an executor panicked",
                "see the message of that rank",
            ));
        }
        if core.check_thread("leaves it").is_err() {
            let mut state = core.lock();
            if state.stage == ShutdownStage::Open {
                state.stage = ShutdownStage::Closing;
                core.is_left.store(true, Ordering::Release);
            }
            return core.work.notify_one();
        }
        // The error of abandoned jobs has no recipient.
        let _ = core.shutdown(core.options.linger);
    }

    pub(super) fn shutdown(&self, limit: Duration) -> Result<()> {
        self.check_process()?;
        self.check_thread("shuts it down")?;
        {
            let mut state = self.lock();
            if state.stage != ShutdownStage::Open {
                return Ok(());
            }
            state.stage = ShutdownStage::Closing;
        }
        let outcome = self.finish(limit);
        let thread = self.lock().thread.take();
        // The panic handler has printed its panic.
        thread.into_iter().for_each(|thread| drop(thread.join()));
        outcome
    }

    /// Waits for the running jobs, abandons the rest, and makes the background thread close the endpoint.
    fn finish(&self, limit: Duration) -> Result<()> {
        let is_done = || self.pending() == 0;
        self.wait(&is_done, Some(limit))?;
        let left = self.pending();
        let mut outcome = Ok(());
        if left > 0 {
            let what = format!("an executor was shut down while {left} jobs were running");
            let error = Error::usage(what, "wait for all jobs on all ranks before the shutdown");
            self.command(&mut self.lock(), ReactorCommand::Abort(error.clone()), true);
            self.wait(&is_done, None)?;
            outcome = Err(error);
        }
        self.lock().stage = ShutdownStage::Over;
        self.work.notify_one();
        outcome
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // They belong to the parent, which still uses them.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((
                state.reactor.take(),
                std::mem::take(&mut state.commands),
                state.thread.take(),
            ));
        }
    }
}
