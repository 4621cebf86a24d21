//! Forks: a forked child has none of this library's threads, and shares its parent's connections. What its parent made
//! is refused there, and never closed.

use crate::error::usage;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Number of forks before something was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u32);

/// Lets children of this process know that they are.
pub(crate) fn watch() {
    extern "C" fn forked() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler is there as long as the process, since extension modules are never unloaded, and does what is
    // safe after a fork. Where the system has no memory for it, forks are not noticed.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

impl Generation {
    /// Returns that of this process.
    pub(crate) fn now() -> Self {
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns true in the process in which it was asked for, and false in its children.
    pub(crate) fn is_now(self) -> bool {
        self == Self::now()
    }

    /// Fails in a child of the process in which it was asked for.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_now() {
            return Ok(());
        }
        Err(usage(
            py,
            "a forked process cannot use its parent's world",
            "communicate in the parent, or start workers by `spawn`",
        ))
    }
}
