//! The wait of a thread for a device. It goes on meanwhile with its operations for which other ranks, and so their
//! devices and this one, may wait.

use super::queue::{DeviceQueue, Event, Failure};
use crate::error::{Error, Result};
use crate::runtime;
use crate::stopwatch::Stopwatch;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Longest time between two looks of a thread that goes on with other work while it waits for a device.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

/// Time for which such a thread looks without a pause: no longer than it takes to be woken from one.
const SPIN: Duration = Duration::from_micros(50);

/// Work of a thread that goes on a little each time that it is called; returns true if anything has moved.
pub(crate) type Meanwhile = dyn Fn() -> bool;

thread_local! {
    /// Work of this thread for which other ranks, and so their devices and this one, may wait.
    static MEANWHILE: RefCell<Vec<Weak<Meanwhile>>> = const { RefCell::new(Vec::new()) };
}

/// Goes on with some work of this thread, as long as it lives, whenever the thread waits for a device.
#[cfg(feature = "cuda")]
pub(crate) fn go_on_meanwhile(work: &Rc<Meanwhile>) {
    MEANWHILE.with_borrow_mut(|works| {
        works.retain(|work| work.strong_count() > 0);
        works.push(Rc::downgrade(work));
    });
}

/// Goes on once with all such work of this thread but `own`; returns true if anything has moved.
pub(crate) fn go_on(own: Option<&Rc<Meanwhile>>) -> bool {
    let mut has_moved = false;
    // One after another, as the list must not be borrowed while one of them works.
    for at in 0.. {
        let Some(work) = MEANWHILE.with_borrow(|works| works.get(at).map(Weak::upgrade)) else { break };
        if let Some(work) = work.filter(|work| own.is_none_or(|own| !Rc::ptr_eq(own, work))) {
            has_moved |= work();
        }
    }
    has_moved
}

/// Waits for an event, and goes on meanwhile with what others wait for; returns true if it has happened, and is settled.
fn wait(event: &dyn Event, limit: Duration) -> bool {
    let has_nothing_to_do = MEANWHILE.with_borrow(|works| works.iter().all(|work| work.strong_count() == 0));
    if has_nothing_to_do && !event.wait(limit) {
        return false;
    }
    let mut waited = Stopwatch::start();
    while !(event.has_happened() && event.is_settled()) {
        let elapsed = waited.elapsed();
        if elapsed > limit {
            return false;
        }
        go_on(None);
        match pause(elapsed) {
            Duration::ZERO => std::hint::spin_loop(),
            pause => runtime::sleep(pause),
        }
    }
    true
}

/// Returns the pause of a thread that has looked for so long: none at first, and then a quarter of that time. Where time is
/// simulated it passes in pauses only, which are all alike.
fn pause(elapsed: Duration) -> Duration {
    match elapsed {
        _ if runtime::is_replaced() => PAUSE,
        elapsed if elapsed < SPIN => Duration::ZERO,
        elapsed => PAUSE.min(elapsed / 4),
    }
}

/// Waits until the queue has done what was enqueued so far, and takes its failure.
pub(crate) fn synchronize(queue: &dyn DeviceQueue) -> Result<()> {
    finish(queue)?.map_or(Ok(()), |failure| Err(failure.into_error(queue.device())))
}

/// Waits until the queue has done what was enqueued so far, and returns its failure.
pub(super) fn finish(queue: &dyn DeviceQueue) -> Result<Option<Failure>> {
    let limit = queue.limit();
    let happened = wait(&*queue.record(), limit);
    let failure = queue.take_failure();
    if happened || failure.is_some() {
        return Ok(failure);
    }
    let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
    let doing = format!("finish the work of a queue of {} within {limit:?}", queue.device());
    Err(Error::system(doing, cause, "see which kernel does not end, or raise the deadline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_again_at_once_before_it_pauses() {
        let micros = Duration::from_micros;
        assert_eq!(pause(micros(49)), Duration::ZERO);
        assert_eq!(pause(micros(80)), micros(20));
        assert_eq!(pause(Duration::from_secs(1)), PAUSE);
    }
}
