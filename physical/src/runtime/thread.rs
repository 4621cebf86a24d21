//! Threads and tasks, and the waits between them.

use super::{LOOK, Park, catch_up, current, enter, within};
use crate::error::{Error, Result};
use crate::waiting::doorbell::Bell;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::mpsc::{self, RecvError, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Builder};
use std::time::Duration;

/// Number of polls by a waiting thread before it parks; many events arrive in this time.
const POLLS: u32 = 10;

/// Makes a future on the thread that drives it, so that the future need not be [`Send`].
pub type Task = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Outcome of a thread: its normal end, or a panic.
type ThreadEnd = std::thread::Result<()>;

/// A spawned thread or task. Dropping it detaches the work.
#[derive(Debug)]
pub struct Thread(ThreadKind);

#[derive(Debug)]
enum ThreadKind {
    System(thread::JoinHandle<()>),
    /// Thread of another runtime, which stores its outcome here when it ends.
    Given(Arc<OnceLock<Mutex<Option<ThreadEnd>>>>),
}

impl Thread {
    /// Waits for the end.
    ///
    /// # Errors
    /// The value with which it panicked.
    pub fn join(self) -> ThreadEnd {
        match self.0 {
            ThreadKind::System(thread) => thread.join(),
            ThreadKind::Given(end) => {
                look_until(|| end.get().is_some(), Duration::MAX);
                let end = end.get().and_then(|end| end.lock().unwrap_or_else(PoisonError::into_inner).take());
                end.unwrap_or(Ok(()))
            }
        }
    }

    /// Returns true once it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            ThreadKind::System(thread) => thread.is_finished(),
            ThreadKind::Given(end) => end.get().is_some(),
        }
    }
}

/// Starts a thread, which inherits this one's runtime. Its `name` begins with `hexagram-`, so that tools show whose it
/// is.
///
/// # Errors
/// [`Error::System`] if there can be no further thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Thread> {
    let Some(runtime) = current() else {
        let thread = Builder::new().name(name.to_owned()).spawn(work).map_err(Error::no_thread)?;
        return Ok(Thread(ThreadKind::System(thread)));
    };
    let end = Arc::new(OnceLock::new());
    let ended = Arc::clone(&end);
    let inherited = Arc::clone(&runtime);
    let work = move || {
        let outcome = within(inherited, || {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            catch_up();
            outcome
        });
        let _ = ended.set(Mutex::new(Some(outcome)));
    };
    runtime.spawn(name, Box::new(work)).map_err(Error::no_thread)?;
    Ok(Thread(ThreadKind::Given(end)))
}

/// Starts the future that `task` creates, on a separate thread, or as the runtime of this thread chooses. It inherits
/// the runtime.
///
/// A service is such a task: instead of blocking its thread, it awaits [`Wait::rest`](crate::waiting::drive::Wait::rest),
/// which blocks if it has a separate thread.
///
/// ```
/// use hexagram_physical::runtime;
/// use std::sync::mpsc::channel;
///
/// let (sender, receiver) = channel();
/// let task = runtime::spawn_task("hexagram-example", move || async move { drop(sender.send(7)) })?;
/// assert_eq!(runtime::receive(&receiver), Ok(7));
/// assert!(task.join().is_ok());
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
///
/// # Errors
/// As [`spawn`].
pub fn spawn_task<F: Future<Output = ()> + 'static>(
    name: &str,
    task: impl FnOnce() -> F + Send + 'static,
) -> Result<Thread> {
    let Some(runtime) = current() else {
        return spawn(name, move || block_on(task()));
    };
    let end = Arc::new(OnceLock::new());
    let ended = Arc::clone(&end);
    let inherited = Arc::clone(&runtime);
    let task: Task = Box::new(move || {
        Box::pin(async move {
            // Made at the first poll, so that a panic of the maker is the task's.
            let mut future: Option<Pin<Box<F>>> = None;
            let mut task = Some(task);
            let outcome = std::future::poll_fn(|context| {
                let _guard = enter(Some(Arc::clone(&inherited)));
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    if let Some(task) = task.take() {
                        future = Some(Box::pin(task()));
                    }
                    let ready = future.as_mut().map(|future| future.as_mut().poll(context));
                    ready.unwrap_or(Poll::Ready(()))
                }));
                match polled {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
                    Err(panic) => Poll::Ready(Err(panic)),
                }
            });
            let outcome: Result<(), Box<dyn Any + Send>> = outcome.await;
            catch_up();
            let _ = ended.set(Mutex::new(Some(outcome)));
        })
    });
    runtime.spawn_task(name, task).map_err(Error::no_thread)?;
    Ok(Thread(ThreadKind::Given(end)))
}

/// Runs `future` to completion on this thread, which parks until it is woken, for waits for other threads only. Drive
/// operations of an endpoint with [`drive::block_on`](crate::waiting::drive::block_on) instead.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(thread::current()));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    let mut polls = 0;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        polls += 1;
        match current() {
            Some(runtime) => runtime.park(&unpark, LOOK),
            None if polls < POLLS => thread::yield_now(),
            None => {
                polls = POLLS;
                thread::park();
            }
        }
    }
}

/// Waker of a thread that is parked.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

impl Bell for Unpark {
    fn ring(&self) {
        if let Some(runtime) = current() {
            runtime.wake();
        }
        self.0.unpark();
    }
}

impl Park for Arc<Unpark> {
    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(self) as Arc<dyn Bell>
    }

    fn park(&self, at_most: Duration) {
        thread::park_timeout(at_most);
    }
}

/// Waits until `look` returns true, or `at_most` has passed, in the runtime of this thread.
fn look_until(mut look: impl FnMut() -> bool, at_most: Duration) {
    if let Some(runtime) = current() {
        runtime.look_until(&mut look, at_most);
    }
}

/// Waits for a message of another thread.
///
/// # Errors
/// [`RecvError`] once all senders are dropped.
pub fn receive<T>(receiver: &mpsc::Receiver<T>) -> Result<T, RecvError> {
    wait_for(|| receiver.recv(), || try_receive(receiver))
}

/// Returns the result of [`receive`] if it would not wait.
fn try_receive<T>(receiver: &mpsc::Receiver<T>) -> Option<Result<T, RecvError>> {
    match receiver.try_recv() {
        Ok(message) => Some(Ok(message)),
        Err(TryRecvError::Disconnected) => Some(Err(RecvError)),
        Err(TryRecvError::Empty) => None,
    }
}

/// Waits for a message of another thread, at most `at_most`; returns `None` on timeout or without a sender.
pub fn receive_within<T>(receiver: &mpsc::Receiver<T>, at_most: Duration) -> Option<T> {
    if current().is_none() {
        return receiver.recv_timeout(at_most).ok();
    }
    let mut received = None;
    let look = || {
        received = try_receive(receiver);
        received.is_some()
    };
    look_until(look, at_most);
    received?.ok()
}

/// Waits for an event of another thread: by `block`, which blocks until then, or, if the threads of a
/// [runtime](super::Runtime) take turns, by polling `look`, which returns `None` until then.
pub fn wait_for<T>(block: impl FnOnce() -> T, mut look: impl FnMut() -> Option<T>) -> T {
    let Some(runtime) = current() else { return block() };
    let mut found = None;
    loop {
        let mut look = || {
            found = look();
            found.is_some()
        };
        runtime.look_until(&mut look, Duration::MAX);
        if let Some(found) = found.take() {
            return found;
        }
    }
}

/// Waits on `condition` while `waits` returns true for the value in `mutex`, at most `at_most`; returns the guard.
pub fn wait_while<'a, T>(
    condition: &Condvar,
    mutex: &'a Mutex<T>,
    at_most: Duration,
    mut waits: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    let lock = || mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(runtime) = current() else {
        let waited = condition.wait_timeout_while(lock(), at_most, waits);
        return waited.unwrap_or_else(PoisonError::into_inner).0;
    };
    // Not held during the wait, since others must change it.
    runtime.look_until(&mut || !waits(&mut lock()), at_most);
    lock()
}
