//! Forks: a forked child has none of the threads of this library, and shares the connections of its parent. Objects of
//! the parent are refused there, and never closed.

use crate::error::usage;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Number of forks before an object was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u32);

/// Installs the detection of forks in children of this process.
pub(crate) fn watch() {
    extern "C" fn forked() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the handler exists as long as the process, since extension modules are never unloaded, and is safe after
    // a fork. If the system has no memory for it, forks are not detected.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
}

impl Generation {
    /// Returns the generation of this process.
    pub(crate) fn now() -> Self {
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns true in the process that created it, and false in its children.
    pub(crate) fn is_now(self) -> bool {
        self == Self::now()
    }

    /// Fails in a child of the process that created it.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self.is_now() {
            return Ok(());
        }
        Err(usage(
            py,
            "a forked process cannot use the world of its parent",
            "communicate in the parent, or start workers by `spawn`",
        ))
    }
}
