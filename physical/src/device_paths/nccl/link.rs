//! One NCCL communicator, the work in flight on it, and its teardown.
//!
//! The communicator does not block: the caller of an operation polls until it is ready. The endpoint thread calls the
//! communicator and, while work is in flight, the sweeper of the device polls it, one at a time. NCCL calls the driver, which
//! may block both threads. So a third thread, which calls neither NCCL nor the driver, ensures that work ends when a peer has
//! failed. If a rank fails, NCCL reports an error, or work exceeds the deadline, then the queue and all operations that wait
//! for it fail with the reason. Then the communicator is aborted, which ends its kernels. The stream keeps memory alive until
//! the device no longer uses it.

use super::communicator::NcclComm;
use super::teardown::Teardown;
use super::translation::explained;
use crate::control::health::{GRACE, Health};
use crate::device::cuda::enqueue::enqueue;
use crate::device::cuda::{CudaQueue, FailureWatch};
use crate::device::{Event, Queue};
use crate::error::{Error, ErrorContext, Result};
use crate::memory::Span;
use crate::runtime;
use crate::transport::Label;
use crate::waiting::doorbell::Bell;
use crate::waiting::lock::lock;
use crate::waiting::stopwatch::Stopwatch;
use nccl_rs::Communicator;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Time after the failure of a rank in which the work is still polled for completion. The polling thread may be blocked.
const PATIENCE: Duration = Duration::from_millis(250);

/// Time between two polls of an NCCL operation.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// Work that is on the stream.
pub(super) struct NcclWork {
    link: Arc<SharedCommunicator>,
    /// Operation that the work is of.
    label: Label,
    /// Event before the work: as long as the device has other work, nothing is late.
    begun: Arc<dyn Event>,
    /// Event after the work.
    done: OnceLock<Arc<dyn Event>>,
    /// Knowledge of it.
    seen: Mutex<Seen>,
}

/// Knowledge of work on the stream. NCCL and the driver are not called while it is locked.
#[derive(Default)]
struct Seen {
    is_done: bool,
    /// Time since the beginning of the work was detected.
    begun: Option<Stopwatch>,
    /// Time since the driver and NCCL have last answered.
    answered: Option<Stopwatch>,
    /// Failure that NCCL has reported.
    trouble: Option<Error>,
    /// Time since a rank is known to have failed.
    condemned: Option<Stopwatch>,
    /// True if the work was found unfinished after that failure.
    is_unfinished: bool,
}

/// A communicator, shared by its endpoint and the sweeper. An endpoint has one of all ranks, and one of each group whose
/// collectives it has called.
pub(super) struct SharedCommunicator {
    /// `None` once it was aborted or destroyed.
    comm: Arc<Mutex<Option<NcclComm>>>,
    /// Failure of all communicators of the endpoint.
    failure: Arc<OnceLock<Error>>,
    /// True once a thread ends the communicator, or is about to.
    is_ending: AtomicBool,
    /// Thread that does so.
    ending: Mutex<Option<Arc<Teardown>>>,
    /// Queue on which it enqueues.
    queue: Queue,
    /// Time since NCCL reported that another rank is gone.
    suspected: Mutex<Option<Stopwatch>>,
    /// Memory of the collective that NCCL was enqueuing when the communicator was ended; `None` once NCCL enqueues nothing
    /// more.
    left_over: Arc<Mutex<Option<Vec<Span>>>>,
    health: Arc<Health>,
    bell: Arc<dyn Bell>,
    /// Longest time that work may take once the device has reached it.
    limit: Duration,
}

impl SharedCommunicator {
    /// Takes over a communicator.
    pub(super) fn new(
        comm: NcclComm,
        queue: Queue,
        (health, bell): (Arc<Health>, Arc<dyn Bell>),
        limit: Duration,
    ) -> Self {
        SharedCommunicator {
            comm: Arc::new(Mutex::new(Some(comm))),
            failure: Arc::default(),
            is_ending: AtomicBool::new(false),
            ending: Mutex::default(),
            queue,
            suspected: Mutex::default(),
            left_over: Arc::new(Mutex::new(Some(Vec::new()))),
            health,
            bell,
            limit,
        }
    }

    /// Takes over another communicator of the same endpoint: if one fails, so does the other.
    pub(super) fn same_endpoint(&self, comm: NcclComm) -> Self {
        let ground = (Arc::clone(&self.health), Arc::clone(&self.bell));
        let link = SharedCommunicator::new(comm, self.queue.clone(), ground, self.limit);
        SharedCommunicator { failure: Arc::clone(&self.failure), ..link }
    }

    fn comm(&self) -> MutexGuard<'_, Option<NcclComm>> {
        lock(&self.comm)
    }

    /// Returns the communicator behind the lock, unless it has ended or is about to end.
    fn live<'a>(&self, turn: &'a MutexGuard<'_, Option<NcclComm>>) -> Result<&'a Communicator> {
        let is_ending = self.is_ending.load(Ordering::Acquire);
        turn.as_deref().filter(|_| !is_ending).ok_or_else(|| self.ended())
    }

    /// Returns the failure that has ended the endpoint's communicators, if they have ended.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Makes NCCL begin an operation.
    ///
    /// # Errors
    /// [`Error::System`] if NCCL refuses; the failure that has ended the communicator.
    pub(super) fn call(
        &self,
        doing: &str,
        call: impl FnOnce(&Communicator) -> nccl_rs::Result<()>,
    ) -> Result<()> {
        let turn = self.comm();
        let comm = self.live(&turn)?;
        call(comm).map_err(|error| explained(doing, &error))
    }

    /// Returns true once NCCL has completed the operation, false while it is in progress.
    ///
    /// # Errors
    /// [`Error::System`] if the operation has failed; if the communicator has ended, the failure that ended it.
    fn is_ready(&self, doing: &str) -> Result<bool> {
        let turn = self.comm();
        let comm = self.live(&turn)?;
        comm.is_ready().map_err(|error| explained(doing, &error))
    }

    /// Does the same, but delays the report of a failure, as a verdict may soon name the rank that caused it.
    ///
    /// # Errors
    /// As [`SharedCommunicator::is_ready`].
    pub(super) fn is_free(&self, doing: &str) -> Result<bool> {
        match self.is_ready(doing) {
            Err(_) => self.trouble(doing).map_or(Ok(false), Err),
            ready => ready,
        }
    }

    /// Returns the failure of a communicator that is gone.
    fn ended(&self) -> Error {
        let closed = || Error::usage("this endpoint's NCCL is closed", "use it while the endpoint lives");
        self.failure.get().cloned().unwrap_or_else(closed)
    }

    /// Makes the device watch work that will be enqueued after the event `begun`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the queue is no GPU's.
    pub(super) fn watch(self: &Arc<Self>, label: Label, begun: Arc<dyn Event>) -> Result<Arc<NcclWork>> {
        let cuda = CudaQueue::of(&self.queue).ok_or_else(no_gpu)?;
        let link = Arc::clone(self);
        let flight = Arc::new(NcclWork { link, label, begun, done: OnceLock::new(), seen: Mutex::default() });
        cuda.watch(Arc::clone(&flight) as Arc<dyn FailureWatch>);
        Ok(flight)
    }

    /// Ends the communicator and all that waits for it, with a reason. Waits for nothing.
    pub(super) fn fail(&self, error: &Error) {
        let error = self.failure.get_or_init(|| error.clone());
        if let Some(queue) = CudaQueue::of(&self.queue) {
            queue.fail(error);
        }
        self.abort();
        self.bell.ring();
    }

    /// Makes NCCL end the communicator and its work. This waits until the device has reached the work, possibly for ever if
    /// earlier work does not end.
    fn abort(&self) {
        let queue = self.queue.clone();
        let left_over = Arc::clone(&self.left_over);
        self.end(move |comm| {
            // Its result is no longer needed.
            drop(comm.abort());
            let spans = lock(&left_over).take();
            hold(&queue, spans.unwrap_or_default());
        });
    }

    /// Starts a thread that ends the communicator with `how`; later calls have no effect. This waits for the lock, whose holder
    /// the driver may block. No other thread ends the communicator.
    fn end(&self, how: impl FnOnce(Communicator) + Send + 'static) {
        let mut ending = lock(&self.ending);
        if self.is_ending.swap(true, Ordering::AcqRel) {
            return;
        }
        let comm = Arc::clone(&self.comm);
        let begun = Teardown::begin(&self.queue, move || {
            let comm = lock(&comm).take();
            if let Some(comm) = comm {
                how(ManuallyDrop::into_inner(comm));
            }
        });
        match begun {
            Ok(begun) => *ending = Some(begun),
            Err(error) => {
                // NCCL may use it as long as the process lives.
                std::mem::forget(Arc::clone(&self.left_over));
                CudaQueue::of(&self.queue).into_iter().for_each(|queue| queue.fail(&error));
            }
        }
    }

    /// Waits until the communicator has ended, if its end has begun, or until `limit` has passed.
    fn wait_for_end(&self, limit: Duration) {
        let ending = lock(&self.ending).clone();
        ending.into_iter().for_each(|ending| ending.wait(limit));
    }

    /// Keeps the memory of the collective that NCCL was enqueuing when the communicator was ended, until NCCL and the device no
    /// longer use it.
    pub(super) fn keep(&self, spans: Vec<Span>) {
        let mut left_over = lock(&self.left_over);
        match &mut *left_over {
            Some(kept) => kept.extend(spans),
            None => hold(&self.queue, spans),
        }
    }

    /// Begins the end of the communicator when its work is done, or when `waited` exceeds the limit.
    fn finish(&self, waited: &mut Stopwatch, limit: Duration) {
        let last = self.queue.device().map(|queue| queue.record());
        let is_done = || last.as_ref().is_none_or(|last| last.has_happened());
        let mut is_over = || self.health.verdict().is_some() || waited.elapsed() > limit;
        while !is_done() && !is_over() {
            runtime::sleep(TICK);
        }
        if !is_done() {
            return self.fail(&self.unfinished(limit));
        }
        if is_over() || self.finalize().is_err() {
            return self.abort();
        }
        while !is_over() {
            match self.is_ready("close NCCL") {
                Ok(true) => return self.destroy(),
                Ok(false) => runtime::sleep(TICK),
                Err(_) => break,
            }
        }
        self.abort();
    }

    /// Returns the error of work that was abandoned.
    fn unfinished(&self, after: Duration) -> Error {
        let context = ErrorContext::Device;
        match self.health.verdict() {
            Some(verdict) => verdict.error(context),
            None => Error::Deadline { waiting_for: None, stragglers: Vec::new(), after, context },
        }
    }

    fn finalize(&self) -> Result<()> {
        let turn = self.comm();
        let comm = self.live(&turn)?;
        let _current = CudaQueue::of(&self.queue).map(|queue| queue.gpu().enter()).transpose()?;
        comm.finalize().map_err(|error| explained("close NCCL", &error))
    }

    /// Makes NCCL destroy the finalized communicator. This waits until no rank of this host has a connection to this rank, and
    /// so for ranks that continue.
    fn destroy(&self) {
        self.end(|comm| drop(comm.destroy()));
    }

    /// Returns the failure that NCCL reports, once it is clear that no verdict names the failed rank.
    fn trouble(&self, doing: &str) -> Option<Error> {
        let error = self.is_ready(doing).err()?;
        let mut suspected = lock(&self.suspected);
        let waited = suspected.get_or_insert_with(Stopwatch::start).elapsed();
        (waited > GRACE).then_some(error)
    }
}

/// Closes the communicators of an endpoint when their work is done, together with the other ranks; ends them after `limit`, and
/// waits for NCCL as long again. Work that is not done by then fails, and so do readers of its result.
pub(super) fn close<'a>(links: impl Iterator<Item = &'a SharedCommunicator> + Clone, limit: Duration) {
    let mut waited = Stopwatch::start();
    links.clone().for_each(|link| link.finish(&mut waited, limit));
    wait_for_ends(links, limit);
}

/// Waits until communicators have ended whose ends have begun, or until `limit` has passed.
pub(super) fn wait_for_ends<'a>(links: impl Iterator<Item = &'a SharedCommunicator>, limit: Duration) {
    let mut waited = Stopwatch::start();
    links.for_each(|link| link.wait_for_end(limit.saturating_sub(waited.elapsed())));
}

/// Makes the stream keep memory alive that the device still uses. A lost device uses none.
fn hold(queue: &Queue, spans: Vec<Span>) {
    let _ = enqueue(queue, Vec::new(), Vec::new(), spans, |_| Ok(()));
}

fn no_gpu() -> Error {
    Error::usage("NCCL was given a queue that is not on a GPU", "report this defect of the path")
}

impl NcclWork {
    /// Returns the event after the work, now that NCCL has enqueued it.
    ///
    /// # Errors
    /// [`Error::Usage`] if the queue is no GPU's.
    pub(super) fn end(&self) -> Result<Arc<dyn Event>> {
        let queue = self.link.queue.device().ok_or_else(no_gpu)?;
        Ok(Arc::clone(self.done.get_or_init(|| queue.record())))
    }

    /// Returns the reason if the work cannot continue.
    fn obstacle(&self, seen: &mut Seen) -> Option<Error> {
        let health = &self.link.health;
        let context = ErrorContext::Operation(self.label.fingerprint, self.label.tag);
        if let Some(verdict) = health.verdict() {
            let waited = seen.condemned.get_or_insert_with(Stopwatch::start).elapsed();
            return (seen.is_unfinished || waited > PATIENCE).then(|| verdict.error(context));
        }
        // Until it is enqueued, its operations check for failures themselves.
        self.done.get()?;
        if let Some(error) = &seen.trouble {
            return Some(error.clone());
        }
        let after = self.link.limit;
        let is_held_up = seen.answered.get_or_insert_with(Stopwatch::start).elapsed() > after;
        let is_late = is_held_up || seen.begun.as_mut().is_some_and(|begun| begun.elapsed() > after);
        let stragglers = || health.stragglers(&self.label);
        is_late.then(|| Error::Deadline { waiting_for: None, stragglers: stragglers(), after, context })
    }
}

impl FailureWatch for NcclWork {
    fn ask(&self) {
        let is_condemned = lock(&self.seen).condemned.is_some();
        let Some(done) = self.done.get() else {
            let mut seen = lock(&self.seen);
            seen.is_unfinished |= is_condemned;
            seen.answered = Some(Stopwatch::start());
            return;
        };
        let is_done = done.has_happened();
        let trouble = if is_done { None } else { self.link.trouble("let NCCL communicate") };
        let has_begun = is_done || self.begun.has_happened();
        let mut seen = lock(&self.seen);
        seen.is_done |= is_done;
        seen.is_unfinished |= is_condemned && !is_done;
        seen.trouble = trouble;
        seen.answered = Some(Stopwatch::start());
        if has_begun {
            seen.begun.get_or_insert_with(Stopwatch::start);
        }
    }

    fn look(&self) -> bool {
        let mut seen = lock(&self.seen);
        if seen.is_done {
            return false;
        }
        let obstacle = self.link.failure().cloned().or_else(|| self.obstacle(&mut seen));
        drop(seen);
        obstacle.iter().for_each(|error| self.link.fail(error));
        obstacle.is_none()
    }
}
