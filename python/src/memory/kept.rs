//! Python objects that operations keep.
//!
//! An operation may end on a thread that must not wait for the interpreter. So what it kept is only laid aside there, and
//! dropped by the next call that holds the interpreter's lock, or by the package's own thread.

use crate::callbacks;
use crate::fork::Generation;
use pyo3::prelude::*;
use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Owner of some elements: dropped with the interpreter's lock only.
#[derive(Debug)]
pub(crate) struct Kept(Option<Held>);

#[derive(Debug)]
pub(crate) enum Held {
    /// An object that has the elements.
    Object(#[allow(dead_code, reason = "it is kept for its drop")] Py<PyAny>),
    /// Another owner, such as a view of an object's buffer.
    Other(#[allow(dead_code, reason = "it is kept for its drop")] Box<dyn Any + Send + Sync>),
}

/// Owners whose operations have ended.
static DROPPED: Mutex<Vec<Held>> = Mutex::new(Vec::new());

impl Kept {
    /// Keeps something.
    pub(super) fn new(held: Held) -> Self {
        Kept(Some(held))
    }

    /// Keeps nothing.
    pub(super) fn nothing() -> Self {
        Kept(None)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(held) = self.0.take() else { return };
        let mut dropped = DROPPED.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.push(held);
        if dropped.len() == 1 {
            callbacks::wake();
        }
    }
}

/// Drops what ended operations kept.
pub(crate) fn sweep(_attached: Python<'_>, generation: Generation) {
    if !generation.is_now() {
        return;
    }
    // Dropped without the lock: it runs other people's code.
    let dropped = DROPPED.try_lock().map(|mut dropped| std::mem::take(&mut *dropped));
    drop(dropped);
}
