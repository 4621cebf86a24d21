//! Calls that NCCL begins together.

use crate::error::Result;
use crate::library::{Functions, functions};

/// Runs `calls`, and makes NCCL begin all calls in it together: on several communicators of this thread, several collectives of
/// one, or sends and receives. Each communicator is ready when the whole group is.
///
/// # Errors
/// The first error of the calls, or of the group.
///
/// # Examples
/// ```no_run
/// use nccl_rs::{Communicator, DataType, Result, group};
/// use std::ffi::c_void;
///
/// /// Swaps `count` floats with another rank.
/// ///
/// /// # Safety
/// /// As `OnStream` says.
/// unsafe fn swap(
///     communicator: &Communicator,
///     (mine, theirs): (u64, u64),
///     (count, peer): (usize, usize),
///     stream: *mut c_void,
/// ) -> Result<()> {
///     let on = communicator.on(stream);
///     group(|| {
///         // SAFETY: as the caller says.
///         unsafe { on.send(mine, count, DataType::Float32, peer) }?;
///         // SAFETY: as the caller says.
///         unsafe { on.recv(theirs, count, DataType::Float32, peer) }
///     })
/// }
/// ```
pub fn group<T>(calls: impl FnOnce() -> Result<T>) -> Result<T> {
    /// Ends the group even if a call panics.
    struct Open(&'static Functions);
    impl Drop for Open {
        fn drop(&mut self) {
            // SAFETY: this thread has begun a group, and not ended it.
            unsafe { (self.0.ncclGroupEnd)() };
        }
    }
    let nccl = functions()?;
    // SAFETY: it takes nothing.
    nccl.expect(unsafe { (nccl.ncclGroupStart)() })?;
    let open = Open(nccl);
    let outcome = calls();
    std::mem::forget(open);
    // SAFETY: as above.
    let ended = nccl.expect(unsafe { (nccl.ncclGroupEnd)() });
    outcome.and_then(|value| ended.map(|()| value))
}
