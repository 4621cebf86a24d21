//! Homes: where something lives until it is closed. A forked child, which has none of its threads, leaves it alone.

use crate::error::usage;
use crate::fork::Generation;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Place of something, until it is closed.
pub(crate) struct Home<T: ?Sized> {
    generation: Generation,
    /// Name for messages.
    what: &'static str,
    kept: Mutex<Option<Arc<T>>>,
}

/// Something that can be made to let go of what it has.
pub(super) trait Empties: Send + Sync {
    /// Drops what is there.
    fn empty(&self);
}

impl<T> Home<T> {
    pub(super) fn new(what: &'static str, kept: T) -> Arc<Self> {
        Arc::new(Home { generation: Generation::now(), what, kept: Mutex::new(Some(Arc::new(kept))) })
    }

    /// Returns what is there. Fails once it was closed, and in a forked child.
    pub(super) fn get(&self, py: Python<'_>) -> PyResult<Arc<T>> {
        self.generation.check(py)?;
        let kept = self.kept().clone();
        kept.ok_or_else(|| usage(py, format!("this {} is closed", self.what), "close it after its last use"))
    }

    /// Takes what is there, if it was not closed.
    pub(super) fn take(&self) -> Option<Arc<T>> {
        self.kept().take()
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync> Empties for Home<T> {
    fn empty(&self) {
        drop(self.take());
    }
}

impl<T: ?Sized> Drop for Home<T> {
    fn drop(&mut self) {
        if !self.generation.is_now() {
            // Its threads are the parent's.
            std::mem::forget(self.kept.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
