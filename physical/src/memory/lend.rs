//! Lending: borrowed elements as a buffer, for as long as a call lasts.

use super::{Buffer, Memory, Owner};
use crate::dtype::Element;
use crate::stopwatch::Stopwatch;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Longest that [`Buffer::lend`] waits for the last view before it gives the process up.
const LEND_LIMIT: Duration = Duration::from_secs(30);

impl Buffer {
    /// Lets `work` use borrowed elements as a buffer that can be read, without a copy.
    ///
    /// Returns when no operation uses the elements any more, so that a late read can never reach freed memory.
    ///
    /// # Aborts
    /// The process ends if a view is still alive 30 s after `work` returned, which only a leaked operation can cause.
    pub fn lend<T: Element, R>(elements: &[T], work: impl FnOnce(&Buffer) -> R) -> R {
        Self::lent(NonNull::from(elements), false, |buffer| work(buffer))
    }

    /// Lends as [`Buffer::lend`] does, elements that `work` may change.
    pub fn lend_mut<T: Element, R>(elements: &mut [T], work: impl FnOnce(&mut Buffer) -> R) -> R {
        Self::lent(NonNull::from(elements), true, work)
    }

    fn lent<T: Element, R>(elements: NonNull<[T]>, writable: bool, work: impl FnOnce(&mut Buffer) -> R) -> R {
        /// Takes the memory back even if `work` panics.
        struct Guard(Arc<Memory>);
        impl Drop for Guard {
            fn drop(&mut self) {
                take_back(&self.0);
            }
        }
        let bytes = elements.len() * size_of::<T>();
        let memory = Memory::new(elements.cast(), bytes, Owner::Lent { writable });
        let mut buffer = Self::over(memory, T::DTYPE, elements.len());
        let _guard = Guard(Arc::clone(&buffer.memory));
        work(&mut buffer)
    }
}

/// Revokes borrowed memory: waits until no view is left and allows no new one.
fn take_back(memory: &Memory) {
    let mut waited = Stopwatch::start();
    loop {
        let mut ledger = memory.ledger();
        if ledger.leases.is_empty() {
            ledger.revoked = true;
            return;
        }
        drop(ledger);
        // A view outlives its operation only while another thread finishes one copy: brief, and there is nothing to
        // be woken by.
        if waited.elapsed() > LEND_LIMIT {
            eprintln!(
                "hexagram: a leaked operation still uses borrowed memory; aborting rather than corrupt it"
            );
            std::process::abort();
        }
        std::thread::yield_now();
    }
}
