//! Worlds that this process is leaving: rank 0 of each leaves last, and a thread waits for that. A program that waited
//! for one world after the other could deadlock with a rank that waits for it in another world.

use crate::error::late;
use crate::fork::Generation;
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time beyond the deadline of a world for leaving it: unsent messages are sent, and threads end.
const MARGIN: Duration = Duration::from_secs(10);

/// Maximum deadline: a year.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Worlds that a process is leaving.
struct Worlds {
    generation: Option<Generation>,
    count: usize,
    /// Number of worlds in which objects are being closed, with their own deadlines.
    closing: usize,
    /// Time at which the other worlds are left at the latest.
    until: Option<Instant>,
}

static WORLDS: Mutex<Worlds> = Mutex::new(Worlds { generation: None, count: 0, closing: 0, until: None });
/// Notified when a world has been left.
static ENDED: Condvar = Condvar::new();

fn worlds() -> MutexGuard<'static, Worlds> {
    WORLDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A world that this process is leaving, until it is dropped.
pub(crate) struct Leaving {
    is_closing: bool,
}

impl Leaving {
    /// Records that this process leaves a world; it first closes the open objects.
    pub(crate) fn begin() -> Self {
        let now = Generation::now();
        let mut worlds = worlds();
        if worlds.generation != Some(now) {
            // The threads of a parent are not in this process.
            *worlds = Worlds { generation: Some(now), count: 0, closing: 0, until: None };
        }
        worlds.count += 1;
        worlds.closing += 1;
        Leaving { is_closing: true }
    }

    /// Records that all objects of the world are closed: it is left within its `deadline`.
    pub(crate) fn closed(&mut self, deadline: Duration) {
        if std::mem::take(&mut self.is_closing) {
            let mut worlds = worlds();
            worlds.closing -= 1;
            let until = Instant::now() + deadline.min(LONGEST) + MARGIN;
            worlds.until = worlds.until.max(Some(until));
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut worlds = worlds();
        worlds.count -= 1;
        worlds.closing -= usize::from(self.is_closing);
        drop(worlds);
        ENDED.notify_all();
    }
}

/// Waits until this process has left all worlds that it began to leave. Fails if one is not left by its deadline.
pub(crate) fn wait(py: Python<'_>) -> PyResult<()> {
    let began = Instant::now();
    let waited = crate::work::wait(py, None, |slice| {
        let mine = |worlds: &Worlds| worlds.generation == Some(Generation::now()) && worlds.count > 0;
        let (left, _) = ENDED
            .wait_timeout_while(worlds(), slice, |worlds| mine(worlds))
            .unwrap_or_else(PoisonError::into_inner);
        let is_late = left.closing == 0 && left.until.is_some_and(|until| Instant::now() > until);
        (!mine(&left) || is_late).then_some(!mine(&left))
    });
    match waited? {
        Some(false) => Err(late(py, "leaving a world", began.elapsed())),
        _ => Ok(()),
    }
}
