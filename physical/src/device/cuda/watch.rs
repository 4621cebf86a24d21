//! Watches: eyes on work that may fail after it was enqueued, such as a stream that waits for a rank which is gone. Open
//! this to see how a failure that is found so late gets to whoever reads what the work has written.
//!
//! The device's sweeper looks. A watch that finds a failure tells the queue first
//! ([`CudaQueue::fail`](super::CudaQueue::fail)), and then lets the stream go on. Watched work leaves a *doubt* on its
//! stream until the watch is over. Events that are recorded meanwhile have the stream's doubts, and so has a stream that
//! waits for one of these in order to read. So a failure gets to whatever was enqueued behind the work, even before it
//! was found.

use super::gpu::lock;
use super::stream::CudaStream;
use crate::error::Error;
use std::sync::{Arc, Mutex, OnceLock};

/// Eye on work that is enqueued.
pub(crate) trait Watch: Send + Sync {
    /// Looks at the work, and returns true while it goes on.
    ///
    /// Called on a thread that serves all queues of a device, 1 ms after the work was enqueued at first and every 64 ms in
    /// the end. It neither waits nor asks the driver for what may wait: nobody else would let the stream go on.
    fn look(&self) -> bool;
}

/// Outcome of watched work, once it is known: the error, or `None` if nothing has failed.
#[derive(Default)]
pub(super) struct Doubt(OnceLock<Option<Error>>);

impl Doubt {
    fn is_open(&self) -> bool {
        self.0.get().is_none()
    }

    fn is_over(&self) -> bool {
        matches!(self.0.get(), Some(None))
    }

    /// Returns the error of work that has failed.
    pub(super) fn error(&self) -> Option<&Error> {
        self.0.get().and_then(Option::as_ref)
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
    fn open(&self) -> Arc<Doubt> {
        let doubt = Arc::new(Doubt::default());
        lock(&self.0).own.push(Arc::clone(&doubt));
        doubt
    }

    /// Settles all that is open of the stream's own work, and lets what is enqueued later carry the error, too.
    pub(super) fn fail(&self, error: &Error) {
        let mut list = lock(&self.0);
        let settled = list.own.iter().filter(|doubt| doubt.0.set(Some(error.clone())).is_ok()).count();
        if settled == 0 {
            list.own.push(Arc::new(Doubt(Some(error.clone()).into())));
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

/// Watched work, as the sweeper has it.
pub(super) struct Watched {
    watch: Arc<dyn Watch>,
    doubt: Arc<Doubt>,
    /// Keeps the device, whose sweeper looks.
    _stream: Arc<CudaStream>,
}

impl Watched {
    /// Takes up a watch for the last work of a stream.
    pub(super) fn new(watch: Arc<dyn Watch>, stream: &Arc<CudaStream>) -> Self {
        Watched { watch, doubt: stream.doubts.open(), _stream: Arc::clone(stream) }
    }

    /// Looks once, and returns true while the work goes on.
    pub(super) fn look(&self) -> bool {
        let goes_on = self.watch.look();
        if !goes_on {
            // Has failed already, or never will.
            let _ = self.doubt.0.set(None);
        }
        goes_on
    }
}
