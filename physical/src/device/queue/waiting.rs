//! The wait of a thread for a device. In the meantime, the thread continues its operations: other ranks may wait for
//! them, and through them their devices and this one.

use super::meanwhile::{PAUSE, go_on, has_work};
use super::{DeviceQueue, Event, Failure, Queue};
use crate::device::codec::CodecError;
use crate::error::{Error, Result};
use crate::runtime;
use crate::waiting::stopwatch::Stopwatch;
use std::time::Duration;

/// Time for which such a thread polls without a pause: no longer than a wake-up from a pause takes.
const SPIN: Duration = Duration::from_micros(50);

/// Waits for an event, and continues other work of the thread in the meantime; returns true if the event has
/// happened, and is settled.
fn wait(event: &dyn Event, limit: Duration) -> bool {
    if !has_work() && !event.wait(limit) {
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

/// Returns the pause of a thread after this time of polling: none at first, and then a quarter of that time. In
/// simulated time, time passes in pauses only, which are all equal.
fn pause(elapsed: Duration) -> Duration {
    match elapsed {
        _ if runtime::is_replaced() => PAUSE,
        elapsed if elapsed < SPIN => Duration::ZERO,
        elapsed => PAUSE.min(elapsed / 4),
    }
}

/// Waits until the queue has completed all earlier work, and takes its failure.
pub(crate) fn synchronize(queue: &dyn DeviceQueue) -> Result<()> {
    finish(queue)?.map_or(Ok(()), |failure| Err(failure.into_error(queue.device())))
}

/// Waits until the queue has completed all earlier work, and returns its failure.
pub(crate) fn finish(queue: &dyn DeviceQueue) -> Result<Option<Failure>> {
    let limit = queue.limit();
    let happened = wait(&*queue.record(), limit);
    let failure = queue.take_failure();
    if happened || failure.is_some() {
        return Ok(failure);
    }
    let cause = std::io::Error::from(std::io::ErrorKind::TimedOut);
    let doing = format!("finish the work of a queue of {} within {limit:?}", queue.device());
    Err(Error::system(doing, cause, "find the kernel that does not end, or raise the deadline"))
}

impl Queue {
    /// Waits until all work that was enqueued so far is done.
    ///
    /// An engine calls this once per step, since the refusal of a codec on a device becomes known only then.
    ///
    /// # Errors
    /// The first failure of the work of the queue, or of memory that it has read, since the previous wait;
    /// [`Error::System`] if the work takes longer than [the limit](Queue::set_limit). Never on the host.
    pub fn check(&self) -> Result<()> {
        self.device().map_or(Ok(()), |queue| synchronize(&**queue))
    }

    /// Waits like [`Queue::check`], and returns the refusal of a codec since the previous wait.
    ///
    /// # Errors
    /// As [`Queue::check`], for failures other than refusals.
    pub fn refusal(&self) -> Result<Option<CodecError>> {
        let Some(queue) = self.device() else { return Ok(None) };
        match finish(&**queue)? {
            Some(Failure::Refused { refusal, .. }) => Ok(Some(refusal)),
            Some(failure) => Err(failure.into_error(queue.device())),
            None => Ok(None),
        }
    }
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
