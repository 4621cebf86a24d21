//! Watches on work that may fail after it was enqueued, such as a stream that waits for a dead rank.
//!
//! A thread of the device's sweeper, which never waits for the driver, looks at the work. A watch that finds a
//! failure first reports it to the queue ([`CudaQueue::fail`](crate::device::cuda::CudaQueue::fail)), and then ends the stream's
//! wait. Watched work leaves a *pending failure* on its stream until the watch ends. Events recorded until then have
//! the pending failures of the stream, and so has a stream that waits for such an event in order to read. So a failure
//! reaches all work enqueued after the failed one, even before it is found. A thread that has waited for an event
//! looks at the pending failures of the event itself before it uses the results: the sweeper may not have looked yet.

use crate::error::Error;
use crate::waiting::lock::lock;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Watch on enqueued work.
pub(crate) trait FailureWatch: Send + Sync {
    /// Looks at the work, and returns true while it runs.
    ///
    /// Called on a thread that serves all queues of a device, at intervals that grow from 1 ms to 64 ms. Also called
    /// by threads that have waited for the work. It must not wait, call the driver, or take a lock whose holder does:
    /// only this thread ends the stream's wait.
    fn look(&self) -> bool;

    /// Queries the driver, or a library that calls it, for the data that [`look`](Self::look) needs. Called as often,
    /// on a second thread, which the driver may block. A thread that has waited for the work calls it before `look`.
    fn ask(&self) {}
}

/// Possible failure of watched work, whose outcome may still be unknown.
pub(crate) struct PendingFailure {
    /// Outcome, once it is known: the error, or `None` for success.
    outcome: OnceLock<Option<Error>>,
    watch: Weak<dyn FailureWatch>,
}

impl PendingFailure {
    fn is_open(&self) -> bool {
        self.outcome.get().is_none()
    }

    fn is_over(&self) -> bool {
        matches!(self.outcome.get(), Some(None))
    }

    /// Returns the error of work that has failed.
    pub(crate) fn error(&self) -> Option<&Error> {
        self.outcome.get().and_then(Option::as_ref)
    }

    /// Looks at the work unless the outcome is known. Returns true while it is unknown.
    pub(crate) fn look(&self) -> bool {
        let watch = self.watch.upgrade().filter(|_| self.is_open());
        let looked = |watch: Arc<dyn FailureWatch>| {
            watch.ask();
            self.look_with(&*watch)
        };
        watch.is_some_and(looked) && self.is_open()
    }

    /// Looks at the work, and returns true while the watch is needed, even if only to end waits after a failure.
    fn look_with(&self, watch: &dyn FailureWatch) -> bool {
        let goes_on = watch.look();
        if !goes_on {
            // It has failed already, or never will.
            let _ = self.outcome.set(None);
        }
        goes_on
    }
}

/// Pending failures of a stream: of its own work, and of work that it has waited for in order to read.
#[derive(Default)]
pub(crate) struct PendingFailures(Mutex<PendingFailureLists>);

#[derive(Default)]
struct PendingFailureLists {
    own: Vec<Arc<PendingFailure>>,
    others: Vec<Arc<PendingFailure>>,
}

impl PendingFailureLists {
    fn retain(&mut self, is_kept: impl Fn(&Arc<PendingFailure>) -> bool) {
        self.own.retain(&is_kept);
        self.others.retain(is_kept);
    }

    fn all(&self) -> impl Iterator<Item = &Arc<PendingFailure>> {
        self.own.iter().chain(&self.others)
    }
}

impl PendingFailures {
    fn open(&self, watch: Weak<dyn FailureWatch>) -> Arc<PendingFailure> {
        let pending = Arc::new(PendingFailure { outcome: OnceLock::new(), watch });
        lock(&self.0).own.push(Arc::clone(&pending));
        pending
    }

    /// Settles all open pending failures of the stream's own work. Work enqueued later gets the error, too.
    pub(crate) fn fail(&self, error: &Error) {
        let mut list = lock(&self.0);
        let settled =
            list.own.iter().filter(|pending| pending.outcome.set(Some(error.clone())).is_ok()).count();
        if settled == 0 {
            let outcome = Some(error.clone()).into();
            list.own.push(Arc::new(PendingFailure { outcome, watch: Weak::<Nothing>::new() }));
        }
    }

    /// Returns the pending failures of an event that is recorded now.
    pub(crate) fn now(&self) -> Vec<Arc<PendingFailure>> {
        let mut list = lock(&self.0);
        list.retain(|pending| !pending.is_over());
        list.all().cloned().collect()
    }

    /// Takes over the pending failures of an event for which the stream waits in order to read.
    pub(crate) fn take_over(&self, pending_failures: &[Arc<PendingFailure>]) {
        if pending_failures.is_empty() {
            return;
        }
        let mut list = lock(&self.0);
        list.retain(|pending| !pending.is_over());
        for pending in pending_failures.iter().filter(|pending| !pending.is_over()) {
            if !list.all().any(|known| Arc::ptr_eq(known, pending)) {
                list.others.push(Arc::clone(pending));
            }
        }
    }

    /// Returns the first error of work that has failed, and forgets all such work.
    pub(crate) fn take_error(&self) -> Option<Error> {
        let mut list = lock(&self.0);
        let first = list.all().find_map(|pending| pending.error().cloned());
        list.retain(|pending| pending.is_open());
        first
    }
}

/// Watch of work with a known outcome.
struct Nothing;

impl FailureWatch for Nothing {
    fn look(&self) -> bool {
        false
    }
}

/// Watched work in the sweeper's list.
pub(crate) struct WatchedWork {
    watch: Arc<dyn FailureWatch>,
    pending: Arc<PendingFailure>,
    /// Keeps the device alive, whose sweeper polls the watch.
    _stream: Arc<dyn Send + Sync>,
}

impl WatchedWork {
    /// Adds a watch for the last work of a stream, which has these pending failures.
    pub(crate) fn new(
        watch: Arc<dyn FailureWatch>,
        pending_failures: &PendingFailures,
        stream: Arc<dyn Send + Sync>,
    ) -> Self {
        let pending = pending_failures.open(Arc::downgrade(&watch));
        WatchedWork { watch, pending, _stream: stream }
    }

    /// Looks once, and returns true while the work runs.
    pub(crate) fn look(&self) -> bool {
        self.pending.look_with(&*self.watch)
    }

    /// Queries the driver before a look.
    pub(crate) fn ask(&self) {
        self.watch.ask();
    }
}
