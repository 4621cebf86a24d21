//! Worlds that this process is leaving: rank 0 of each goes last, and what waits for that is a thread. A program that
//! waited for one world after the other would wait for a rank that waits for it in another world.

use crate::fork::Generation;
use pyo3::prelude::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Worlds that a process is leaving.
struct Worlds {
    generation: Option<Generation>,
    count: usize,
}

static WORLDS: Mutex<Worlds> = Mutex::new(Worlds { generation: None, count: 0 });
/// Rung when one of them is left.
static ENDED: Condvar = Condvar::new();

fn worlds() -> MutexGuard<'static, Worlds> {
    WORLDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A world that this process is leaving, until it is dropped.
pub(crate) struct Leaving;

impl Leaving {
    pub(crate) fn begin() -> Self {
        let now = Generation::now();
        let mut worlds = worlds();
        if worlds.generation != Some(now) {
            // The threads of a parent are not in this process.
            *worlds = Worlds { generation: Some(now), count: 0 };
        }
        worlds.count += 1;
        Leaving
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        worlds().count -= 1;
        ENDED.notify_all();
    }
}

/// Waits until this process has left all worlds that it began to leave.
pub(crate) fn wait(py: Python<'_>) -> PyResult<()> {
    let waited = crate::work::wait(py, None, |slice| {
        let mine = |worlds: &Worlds| worlds.generation == Some(Generation::now()) && worlds.count > 0;
        let (left, _) = ENDED
            .wait_timeout_while(worlds(), slice, |worlds| mine(worlds))
            .unwrap_or_else(PoisonError::into_inner);
        (!mine(&left)).then_some(())
    });
    waited.map(drop)
}
