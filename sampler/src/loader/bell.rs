//! Wakes a future that waits for a batch, on arrival and on timeout. Works with any executor.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// Rung by the thread that delivers a batch.
#[derive(Clone, Default)]
pub(super) struct BatchBell(Arc<Mutex<Option<Waker>>>);

impl BatchBell {
    /// Registers a future for the next [`ring`](Self::ring).
    pub(super) fn register(&self, waker: &Waker) {
        let mut registered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *registered {
            Some(earlier) => earlier.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    pub(super) fn ring(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Rings a bell at a deadline, from a separate thread, since executors have no common timer. The thread ends when the
/// clock is dropped.
pub(super) struct DeadlineTimer(Sender<Instant>);

impl DeadlineTimer {
    pub(super) fn start(bell: BatchBell) -> std::io::Result<Self> {
        let (sender, deadlines) = unbounded();
        std::thread::Builder::new().name("loader clock".into()).spawn(move || watch(&deadlines, &bell))?;
        Ok(DeadlineTimer(sender))
    }

    /// Sets the deadline, replacing the previous one.
    pub(super) fn set(&self, deadline: Instant) {
        let _ = self.0.send(deadline);
    }
}

fn watch(deadlines: &Receiver<Instant>, bell: &BatchBell) {
    while let Ok(mut deadline) = deadlines.recv() {
        loop {
            match deadlines.recv_deadline(deadline) {
                Ok(later) => deadline = later,
                Err(RecvTimeoutError::Timeout) => break bell.ring(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}
