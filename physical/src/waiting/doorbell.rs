//! Bells, which end a thread's sleep from outside. Each transport has its own kind; the one here is an eventfd, which
//! ends a `poll`.

#![allow(clippy::disallowed_methods, reason = "backends stand on it")]

use crate::error::Result;
use crate::system::limits;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Wakes the thread that is parked on an endpoint. Any thread may ring it.
pub trait Bell: Send + Sync {
    /// Ends the current park, or the next one if no thread is parked.
    fn ring(&self);
}

/// Bell that ends a `poll`, also in a different process.
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// Creates a bell.
    ///
    /// # Errors
    /// [`Error::System`] if the system gives no descriptor.
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map(Doorbell)
            .map_err(|cause| limits::no_descriptor("create an eventfd", cause))
    }

    /// Forgets the rings so far.
    pub(crate) fn clear(&self) {
        // Fails only if the bell has not rung.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl From<OwnedFd> for Doorbell {
    /// Takes an eventfd that another process created.
    fn from(eventfd: OwnedFd) -> Self {
        Doorbell(eventfd)
    }
}

impl Bell for Doorbell {
    fn ring(&self) {
        // Fails only if the count is full, in which case the bell is already ringing.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Converts a duration for system calls.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() }
}
