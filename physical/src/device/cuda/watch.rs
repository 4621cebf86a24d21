//! Watches: eyes on work that may fail after it was enqueued, such as a stream that waits for a rank which is gone.
//!
//! A thread of the device's sweeper looks, which never waits for the driver. A watch that finds a failure tells the queue
//! first ([`CudaQueue::fail`](super::CudaQueue::fail)), and then lets the stream go on. Watched work leaves a *doubt* on
//! its stream until the watch is over. Events that are recorded meanwhile have the stream's doubts, and so has a stream
//! that waits for one of these in order to read. So a failure gets to whatever was enqueued behind the work, even before
//! it was found. Whoever has waited for an event looks at its doubts himself before he relies on what the work has
//! written: the sweeper may be about to.

use crate::error::Error;
use crate::lock::lock;
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Eye on work that is enqueued.
pub(crate) trait Watch: Send + Sync {
    /// Looks at the work, and returns true while it goes on.
    ///
    /// Called on a thread that serves all queues of a device, 1 ms after the work was enqueued at first and every 64 ms in
    /// the end, and by whoever has waited for the work. It neither waits nor calls the driver, nor does it take a lock that
    /// is held while somebody does: nobody else would let the stream go on.
    fn look(&self) -> bool;

    /// Asks the driver, or a library that does, for what [`look`](Self::look) needs to know. Called as often, on another
    /// thread, which the driver may hold up; and before `look` by whoever has waited for the work.
    fn ask(&self) {}
}

/// Doubt about watched work.
pub(super) struct Doubt {
    /// Outcome, once it is known: the error, or `None` if nothing has failed.
    outcome: OnceLock<Option<Error>>,
    watch: Weak<dyn Watch>,
}

impl Doubt {
    fn is_open(&self) -> bool {
        self.outcome.get().is_none()
    }

    fn is_over(&self) -> bool {
        matches!(self.outcome.get(), Some(None))
    }

    /// Returns the error of work that has failed.
    pub(super) fn error(&self) -> Option<&Error> {
        self.outcome.get().and_then(Option::as_ref)
    }

    /// Looks at the work unless the outcome is known. Returns true while it is not.
    pub(super) fn look(&self) -> bool {
        let watch = self.watch.upgrade().filter(|_| self.is_open());
        let looked = |watch: Arc<dyn Watch>| {
            watch.ask();
            self.look_with(&*watch)
        };
        watch.is_some_and(looked) && self.is_open()
    }

    /// Looks at the work, and returns true while it goes on, be it only to let streams go on after it has failed.
    fn look_with(&self, watch: &dyn Watch) -> bool {
        let goes_on = watch.look();
        if !goes_on {
            // Has failed already, or never will.
            let _ = self.outcome.set(None);
        }
        goes_on
    }
}

/// Doubts of a stream: of its own work, and of what it has waited for in order to read.
#[derive(Default)]
pub(super) struct Doubts(Mutex<List>);

#[derive(Default)]
struct List {
    own: Vec<Arc<Doubt>>,
    others: Vec<Arc<Doubt>>,
}

impl List {
    fn retain(&mut self, is_kept: impl Fn(&Arc<Doubt>) -> bool) {
        self.own.retain(&is_kept);
        self.others.retain(is_kept);
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Doubt>> {
        self.own.iter().chain(&self.others)
    }
}

impl Doubts {
    fn open(&self, watch: Weak<dyn Watch>) -> Arc<Doubt> {
        let doubt = Arc::new(Doubt { outcome: OnceLock::new(), watch });
        lock(&self.0).own.push(Arc::clone(&doubt));
        doubt
    }

    /// Settles all that is open of the stream's own work, and lets what is enqueued later carry the error, too.
    pub(super) fn fail(&self, error: &Error) {
        let mut list = lock(&self.0);
        let settled = list.own.iter().filter(|doubt| doubt.outcome.set(Some(error.clone())).is_ok()).count();
        if settled == 0 {
            let outcome = Some(error.clone()).into();
            list.own.push(Arc::new(Doubt { outcome, watch: Weak::<Nothing>::new() }));
        }
    }

    /// Returns those that an event has which is recorded now.
    pub(super) fn now(&self) -> Vec<Arc<Doubt>> {
        let mut list = lock(&self.0);
        list.retain(|doubt| !doubt.is_over());
        list.all().cloned().collect()
    }

    /// Takes over those of an event, for which the stream waits in order to read.
    pub(super) fn take_over(&self, doubts: &[Arc<Doubt>]) {
        if doubts.is_empty() {
            return;
        }
        let mut list = lock(&self.0);
        list.retain(|doubt| !doubt.is_over());
        for doubt in doubts.iter().filter(|doubt| !doubt.is_over()) {
            if !list.all().any(|known| Arc::ptr_eq(known, doubt)) {
                list.others.push(Arc::clone(doubt));
            }
        }
    }

    /// Returns the first error of work that has failed, and forgets all such work.
    pub(super) fn take_error(&self) -> Option<Error> {
        let mut list = lock(&self.0);
        let first = list.all().find_map(|doubt| doubt.error().cloned());
        list.retain(|doubt| doubt.is_open());
        first
    }
}

/// Watch of work whose outcome is known.
struct Nothing;

impl Watch for Nothing {
    fn look(&self) -> bool {
        false
    }
}

/// Watched work, as the sweeper has it.
pub(super) struct Watched {
    watch: Arc<dyn Watch>,
    doubt: Arc<Doubt>,
    /// Keeps the device, whose sweeper looks.
    _stream: Arc<dyn Send + Sync>,
}

impl Watched {
    /// Takes up a watch for the last work of a stream, whose doubts these are.
    pub(super) fn new(watch: Arc<dyn Watch>, doubts: &Doubts, stream: Arc<dyn Send + Sync>) -> Self {
        let doubt = doubts.open(Arc::downgrade(&watch));
        Watched { watch, doubt, _stream: stream }
    }

    /// Looks once, and returns true while the work goes on.
    pub(super) fn look(&self) -> bool {
        self.doubt.look_with(&*self.watch)
    }

    /// Asks the driver for what the look needs.
    pub(super) fn ask(&self) {
        self.watch.ask();
    }
}
