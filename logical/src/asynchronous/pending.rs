//! Results from another thread of this rank: futures that are completed from outside.

use crate::runtime;
use crate::{Error, Result};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

/// The result of work on another thread of this rank, such as an answer to a request.
///
/// The work begins before a `Pending` is returned, and continues whether it is polled or not. Await it, or wait with
/// [`Pending::blocking`]. It always completes, with an error if the deadline of the work has passed, or the thread
/// has ended. Dropping it discards the result, but does not cancel the work.
///
/// ```
/// use hexagram_logical::asynchronous::Background;
/// use hexagram_logical::testing::spawn;
/// use hexagram_logical::TransportKind;
///
/// let ranks = spawn(TransportKind::Thread, 2, |comm| {
///     let background = comm.block_on(Background::start(&comm))?;
///     let sum = background.call(async |comm| Ok(comm.rank() + comm.size()));
///     // … compute …
///     sum.blocking()
/// });
/// assert_eq!(ranks.unwrap(), [Some(2), Some(3)]);
/// ```
#[must_use = "await it, to get its errors"]
pub struct Pending<T> {
    slot: Arc<ResultSlot<T>>,
    ending: Arc<DeliveryEnd>,
}

/// The other end of a [`Pending`], which delivers the result. Dropping it fails the `Pending`.
pub(super) struct Promise<T>(Arc<ResultSlot<T>>);

struct ResultSlot<T>(Mutex<ResultProgress<T>>);

enum ResultProgress<T> {
    /// No result yet; the waker is that of the waiting task.
    Waiting(Option<Waker>),
    Done(Result<T>),
    /// The promise was dropped.
    Abandoned,
    Taken,
}

/// Reason why a thread that delivers results has ended.
pub(super) struct DeliveryEnd {
    failure: OnceLock<Error>,
    /// The error of a `Pending` whose thread has ended without an error.
    otherwise: fn() -> Error,
}

impl DeliveryEnd {
    pub(super) fn new(otherwise: fn() -> Error) -> Self {
        DeliveryEnd { failure: OnceLock::new(), otherwise }
    }

    /// Stores the error that ended the thread. Call it before the promises are dropped.
    pub(super) fn fail(&self, error: Error) {
        let _ = self.failure.set(error);
    }

    /// Returns the error that ended the thread, if one did.
    pub(super) fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    /// Returns the error for requests after the end of the thread.
    pub(super) fn error(&self) -> Error {
        self.failure().unwrap_or_else(self.otherwise)
    }
}

impl<T> ResultSlot<T> {
    fn lock(&self) -> MutexGuard<'_, ResultProgress<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, progress: ResultProgress<T>) {
        let before = std::mem::replace(&mut *self.lock(), progress);
        if let ResultProgress::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Promise<T> {
    /// Delivers the result.
    pub(super) fn complete(self, outcome: Result<T>) {
        self.0.settle(ResultProgress::Done(outcome));
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if matches!(*self.0.lock(), ResultProgress::Waiting(_)) {
            self.0.settle(ResultProgress::Abandoned);
        }
    }
}

impl<T> Pending<T> {
    /// Creates both ends. If the promise is dropped, the error is that of `ending`.
    pub(super) fn new(ending: &Arc<DeliveryEnd>) -> (Promise<T>, Pending<T>) {
        let slot = Arc::new(ResultSlot(Mutex::new(ResultProgress::Waiting(None))));
        (Promise(Arc::clone(&slot)), Pending { slot, ending: Arc::clone(ending) })
    }

    /// Creates a `Pending` whose work failed before it began.
    pub(super) fn failed(ending: &Arc<DeliveryEnd>, error: Error) -> Self {
        let (promise, pending) = Pending::new(ending);
        promise.complete(Err(error));
        pending
    }

    /// Returns true if the result, or an error, has arrived, so that awaiting it does not wait.
    pub fn is_done(&self) -> bool {
        !matches!(*self.slot.lock(), ResultProgress::Waiting(_))
    }

    /// Blocks this thread until the result arrives. The deadlines of the work limit the wait.
    ///
    /// # Errors
    /// The error of the work, or the one that ended its thread.
    pub fn blocking(self) -> Result<T> {
        runtime::block_on(self)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut progress = self.slot.lock();
        match std::mem::replace(&mut *progress, ResultProgress::Taken) {
            ResultProgress::Waiting(_) => {
                *progress = ResultProgress::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            ResultProgress::Done(outcome) => Poll::Ready(outcome),
            ResultProgress::Abandoned => Poll::Ready(Err(self.ending.error())),
            ResultProgress::Taken => {
                Poll::Ready(Err(Error::usage("a finished result was polled again", "await it once")))
            }
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("done", &self.is_done()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    fn ending() -> Arc<DeliveryEnd> {
        Arc::new(DeliveryEnd::new(|| Error::usage("it is over", "ask earlier")))
    }

    #[test]
    fn a_result_comes_from_another_thread() {
        for delay in [0, 1, 5] {
            let (promise, pending) = Pending::new(&ending());
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(delay));
                    promise.complete(Ok(7));
                });
                assert_eq!(pending.blocking().unwrap(), 7);
            });
        }
    }

    #[test]
    fn whoever_polled_last_is_woken() {
        struct Count(AtomicU32);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let counts = [(); 2].map(|()| Arc::new(Count(AtomicU32::new(0))));
        let (promise, pending) = Pending::new(&ending());
        let mut pending = pin!(pending);
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(!pending.is_done());
        promise.complete(Ok(()));
        assert!(pending.is_done());
        assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
    }

    #[test]
    fn a_promise_that_is_dropped_fails_with_what_ended_its_thread() {
        let ending = ending();
        let (promise, unsaid) = Pending::<()>::new(&ending);
        drop(promise);
        assert!(unsaid.is_done());
        assert!(unsaid.blocking().unwrap_err().to_string().contains("it is over"));
        let (promise, told) = Pending::<()>::new(&ending);
        ending.fail(Error::usage("it broke", "mend it"));
        drop(promise);
        assert!(told.blocking().unwrap_err().to_string().contains("it broke"));
    }
}
