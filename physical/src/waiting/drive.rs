//! Driving: waiting threads move the bytes.
//!
//! Waiting spins, then parks. If ranks have separate cores, spinning is faster than waking a parked thread, which
//! takes tens of microseconds; `patience` sets its duration. If the awaited rank shares this core, it may be the next
//! to run here, so that the thread yields instead of spinning. A thread that communicates alongside a computing one
//! ([`beside_computation`]) frees the core immediately: spinning would take time from the computation.

use super::spin_budget::patience;
use super::stopwatch::Stopwatch;
use crate::runtime;
use crate::transport::{Bell, Transport};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Number of polls for work between two reads of the clock.
const LOOKS: u32 = 32;
/// Maximum time that a poll counts: if it takes longer, this thread was not running.
const LOOKING: Duration = Duration::from_micros(50);
/// Polls of a thread alongside a computation, before it parks.
const YIELDS: u32 = 20;
/// Longest park, so that deadlines are noticed; all other events end a park themselves.
const TICK: Duration = Duration::from_millis(50);

/// Wakes one thread that drives: ends its park, or keeps it from the next.
#[derive(Default)]
struct DriverWaker {
    woken: AtomicBool,
    /// The bell of the endpoint on which the thread is parked.
    parked: Mutex<Option<Arc<dyn Bell>>>,
}

impl DriverWaker {
    fn parked(&self) -> MutexGuard<'_, Option<Arc<dyn Bell>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::SeqCst)
    }

    /// Parks with `park` unless the thread was woken. The waking thread is either seen here, or sees the bell.
    fn park(&self, transport: &dyn Transport, park: impl FnOnce()) {
        *self.parked() = Some(transport.bell());
        if !self.woken.load(Ordering::SeqCst) {
            park();
        }
        *self.parked() = None;
    }
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if let Some(runtime) = runtime::current() {
            runtime.wake();
        }
        if let Some(bell) = &*self.parked() {
            bell.ring();
        }
    }
}

thread_local! {
    static DRIVER: Arc<DriverWaker> = Arc::default();
    static WAKER: Waker = DRIVER.with(|driver| Waker::from(Arc::clone(driver)));
    static PARKS: Cell<u64> = const { Cell::new(0) };
    static BESIDE: Cell<bool> = const { Cell::new(false) };
    /// Number of the future that is polled.
    static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `poll`, which polls the future that its caller identifies by `number`, with which an endpoint may report
/// [readiness](Transport::take_ready).
pub fn numbered<R>(number: usize, poll: impl FnOnce() -> R) -> R {
    within_number(Some(number), poll)
}

/// Runs `work` with a different number, and restores that of the caller afterwards.
pub(crate) fn within_number<R>(number: Option<usize>, work: impl FnOnce() -> R) -> R {
    let outer = NUMBER.replace(number);
    let result = work();
    NUMBER.set(outer);
    result
}

/// Returns the number of the polled future, if its driver has set one.
#[cfg(feature = "sim")]
pub(crate) fn number() -> Option<usize> {
    NUMBER.get()
}

/// Returns the waker for polls on this thread with [`Wait::round`] between them. It may be sent to other threads, and
/// ends the wait of this one. Under any other waker, an operation makes progress at each poll and wakes its task
/// immediately, so that it works under any executor.
pub fn waker() -> Waker {
    WAKER.with(Waker::clone)
}

/// Returns true if this thread drives the task that is polled with `context`, by [`waker`].
pub fn drives(context: &Context<'_>) -> bool {
    WAKER.with(|waker| waker.data() == context.waker().data())
}

/// Runs `future` to completion on this thread, and moves the bytes of this endpoint.
pub fn block_on<F: Future>(transport: &dyn Transport, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut wait = Wait::default();
    // Borrowed: counting one more waker takes a tenth of the time of the shortest operations.
    WAKER.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            wait.round(transport);
        }
    })
}

/// Runs `future` to completion, like [`block_on`], within a [task](runtime::spawn_task): it blocks the thread if the
/// task has its own, and yields to an executor otherwise.
pub async fn run<F: Future>(transport: &dyn Transport, future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = waker();
    let mut wait = Wait::default();
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        wait.rest(transport).await;
    }
}

/// Makes this thread wait without taking time from one that computes, from here on: it yields a few times, and parks.
pub fn beside_computation() {
    BESIDE.set(true);
}

/// Returns the number of parks of this thread, for code that counts polls as time: after a park, polls are no longer
/// consecutive.
pub(crate) fn parks() -> u64 {
    PARKS.get()
}

/// Patience between two polls: ends while nothing moves.
#[derive(Debug, Default)]
pub struct Wait {
    /// Looks in vain.
    idle: u32,
    /// Time spent on them, as far as this thread was running.
    spent: Duration,
    stopwatch: Option<Stopwatch>,
    /// True if ranks shared this core then.
    crowded: bool,
}

impl Wait {
    /// Makes progress. Without progress or a wake-up, waits slightly longer than the last time.
    pub fn round(&mut self, transport: &dyn Transport) {
        self.round_within(transport, TICK);
    }

    /// Makes progress or waits, as [`Wait::round`] does, for no longer than `limit`.
    pub fn round_within(&mut self, transport: &dyn Transport, limit: Duration) {
        if has_moved(transport) {
            *self = Wait::default();
            return;
        }
        let at_most = limit.min(TICK);
        if let Some(runtime) = runtime::current() {
            // Threads do not spin in virtual time, which would not pass.
            let start = runtime.now();
            DRIVER.with(|driver| driver.park(transport, || runtime.park(&transport, at_most)));
            // Here, so that the next poll is not in vain.
            transport.progress();
            return count_if_over(start, at_most);
        }
        let beside = BESIDE.get();
        if self.idle.is_multiple_of(LOOKS) && !beside {
            self.look_around(transport);
        }
        self.idle = self.idle.saturating_add(1);
        let patient = if beside { self.idle < YIELDS } else { self.spent < patience() };
        if !patient {
            // After a park without an event, it parks again immediately.
            PARKS.set(PARKS.get().wrapping_add(1));
            DRIVER.with(|driver| driver.park(transport, || transport.park(at_most)));
        } else if beside || self.crowded {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Makes progress, or rests, like [`Wait::round`], for a [task](runtime::spawn_task): it blocks the thread if the
    /// task has its own, and yields to an executor otherwise.
    pub async fn rest(&mut self, transport: &dyn Transport) {
        match runtime::current() {
            None => self.round(transport),
            Some(_) if has_moved(transport) => {}
            Some(runtime) => {
                let start = runtime.now();
                let mut is_over = false;
                let rested = |context: &mut Context<'_>| {
                    if std::mem::replace(&mut is_over, true) {
                        return Poll::Ready(());
                    }
                    runtime.poll_park(&transport, TICK, context)
                };
                poll_fn(rested).await;
                transport.progress();
                count_if_over(start, TICK);
            }
        }
    }

    fn look_around(&mut self, transport: &dyn Transport) {
        self.spent = self.stopwatch.get_or_insert_with(|| Stopwatch::with_gap(LOOKING)).elapsed();
        self.crowded = transport.crowded();
    }
}

/// Counts a park that began at `start`, if it ended because `at_most` had passed.
fn count_if_over(start: runtime::Instant, at_most: Duration) {
    if start.elapsed() >= at_most {
        PARKS.set(PARKS.get().wrapping_add(1));
    }
}

/// Makes progress; returns true if there was any, or this thread was woken.
fn has_moved(transport: &dyn Transport) -> bool {
    transport.progress() | DRIVER.with(|driver| driver.take_woken())
}
