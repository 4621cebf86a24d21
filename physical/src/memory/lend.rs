//! Lending: elements of the program as a buffer, borrowed for the duration of a call, or kept while they are read.

use super::dtype::Element;
use super::{Buffer, BufferMemory, MemoryOwner};
use crate::waiting::stopwatch::Stopwatch;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that [`Buffer::lend`] waits for the last view before it aborts the process.
const LEND_LIMIT: Duration = Duration::from_secs(30);

impl Buffer {
    /// Calls `work` with borrowed elements as a buffer that can be read, without a copy.
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

    /// Returns a readable buffer over the elements of `owner`, without a copy. The owner is dropped when neither
    /// buffer nor view is left, and work that reads the elements on a device is done.
    ///
    /// ```
    /// use hexagram_physical::Buffer;
    /// use std::sync::Arc;
    ///
    /// let buffer = Buffer::constant::<f32, _>(Arc::new(vec![1.0, 2.0]));
    /// assert_eq!(*buffer.host::<f32>()?, [1.0, 2.0]);
    /// assert!(buffer.write_all().is_err());
    /// # Ok::<(), hexagram_physical::Error>(())
    /// ```
    pub fn constant<T: Element, O: AsRef<[T]> + Send + Sync + 'static>(owner: Arc<O>) -> Buffer {
        // While `owner` is shared, exclusive access is impossible: its elements stay in place, and unchanged.
        let elements = (*owner).as_ref();
        let place = NonNull::from(elements).cast();
        let bytes = size_of_val(elements);
        let len = elements.len();
        Self::over(BufferMemory::new(place, bytes, MemoryOwner::Constant { _owner: owner }), T::DTYPE, len)
    }

    fn lent<T: Element, R>(elements: NonNull<[T]>, writable: bool, work: impl FnOnce(&mut Buffer) -> R) -> R {
        /// Takes the memory back even if `work` panics.
        struct TakeBackGuard(Arc<BufferMemory>);
        impl Drop for TakeBackGuard {
            fn drop(&mut self) {
                take_back(&self.0);
            }
        }
        let bytes = elements.len() * size_of::<T>();
        let memory = BufferMemory::new(elements.cast(), bytes, MemoryOwner::Lent { writable });
        let mut buffer = Self::over(memory, T::DTYPE, elements.len());
        let _guard = TakeBackGuard(Arc::clone(&buffer.memory));
        work(&mut buffer)
    }
}

/// Revokes borrowed memory: waits until no view is left and allows no new one.
fn take_back(memory: &BufferMemory) {
    let mut waited = Stopwatch::start();
    loop {
        let mut ledger = memory.ledger();
        if ledger.leases.is_empty() {
            ledger.revoked = true;
            return;
        }
        drop(ledger);
        // A view outlives its operation only while another thread finishes one copy, which is brief and has no
        // wake-up.
        if waited.elapsed() > LEND_LIMIT {
            eprintln!(
                "hexagram: a leaked operation still uses borrowed memory; aborting rather than corrupt it"
            );
            std::process::abort();
        }
        std::thread::yield_now();
    }
}
