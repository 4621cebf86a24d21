//! Python objects that operations keep.
//!
//! An operation may end on a thread that must not wait for the interpreter. So its objects are only queued there, and
//! dropped by the next call that holds the interpreter lock, or by a thread of the package.

use crate::callbacks;
use crate::fork::Generation;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Owner of some elements, dropped only with the interpreter lock.
#[derive(Debug)]
pub(crate) struct ElementsOwner(Option<OwnerKind>);

#[derive(Debug)]
pub(crate) enum OwnerKind {
    /// An object that owns the elements.
    Object(#[allow(dead_code, reason = "it is kept for its drop")] Py<PyAny>),
    /// Another owner, such as a view of the buffer of an object.
    Other(#[allow(dead_code, reason = "it is kept for its drop")] Box<dyn Any + Send + Sync>),
}

/// Owners whose operations have ended, with the processes in which they did.
static DROPPED: Mutex<Vec<(Generation, OwnerKind)>> = Mutex::new(Vec::new());

impl ElementsOwner {
    /// Keeps an owner.
    pub(super) fn new(held: OwnerKind) -> Self {
        ElementsOwner(Some(held))
    }

    /// Keeps nothing.
    pub(super) fn nothing() -> Self {
        ElementsOwner(None)
    }
}

impl Drop for ElementsOwner {
    fn drop(&mut self) {
        let Some(held) = self.0.take() else { return };
        let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.push((Generation::now(), held));
        if dropped.len() == 1 {
            callbacks::wake();
        }
    }
}

/// Drops the objects kept by ended operations.
pub(crate) fn sweep(_attached: Python<'_>, generation: Generation) {
    if !generation.is_now() {
        return;
    }
    // Dropped without the lock: destructors run foreign code.
    let dropped = DROPPED.try_lock().map(|mut dropped| std::mem::take(&mut *dropped));
    for (process, owner) in dropped.unwrap_or_default() {
        // The owners of a parent belong to libraries, such as a driver, that a forked process cannot call.
        if process.is_now() { drop(owner) } else { std::mem::forget(owner) }
    }
}
