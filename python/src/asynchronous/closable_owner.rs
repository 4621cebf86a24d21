//! Homes: each owns a value until it is closed. A forked child, which has none of its threads, does not touch it.

use crate::error::usage;
use crate::fork::Generation;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Owner of a value, until it is closed.
pub(crate) struct ClosableOwner<T: ?Sized> {
    generation: Generation,
    /// Name for messages.
    what: &'static str,
    kept: Mutex<Option<Arc<T>>>,
}

/// Something that can drop its value.
pub(super) trait Empties: Send + Sync {
    /// Drops the value.
    fn empty(&self);
}

impl<T> ClosableOwner<T> {
    pub(super) fn new(what: &'static str, kept: T) -> Arc<Self> {
        Arc::new(ClosableOwner {
            generation: Generation::now(),
            what,
            kept: Mutex::new(Some(Arc::new(kept))),
        })
    }

    /// Returns the value. Fails after it was closed, and in a forked child.
    pub(super) fn get(&self, py: Python<'_>) -> PyResult<Arc<T>> {
        self.generation.check(py)?;
        let kept = self.kept().clone();
        kept.ok_or_else(|| usage(py, format!("this {} is closed", self.what), "close it after its last use"))
    }

    /// Takes the value, if it was not closed.
    pub(super) fn take(&self) -> Option<Arc<T>> {
        self.kept().take()
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync> Empties for ClosableOwner<T> {
    fn empty(&self) {
        drop(self.take());
    }
}

impl<T: ?Sized> Drop for ClosableOwner<T> {
    fn drop(&mut self) {
        if !self.generation.is_now() {
            // Its threads belong to the parent.
            std::mem::forget(self.kept.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
