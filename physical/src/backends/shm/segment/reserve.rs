//! Allocates memory for an anonymous file, but only while enough is left. Memory that the kernel has promised cannot be
//! refused later: it would kill processes, of this job or of others, to find more.

use super::memory_limits::MemoryLimits;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use std::io;
use std::os::fd::OwnedFd;

/// Bytes allocated at a time, so that ranks that allocate at the same time see each other's allocations.
const PIECE: u64 = 8 << 20;

/// Allocates `size` bytes of memory for `file`.
///
/// # Errors
/// Out of memory, before the machine or the container is; otherwise the error of the system call.
pub(crate) fn reserve(file: &OwnedFd, size: u64) -> io::Result<()> {
    let bounds = MemoryLimits::find();
    reserve_if(|bytes| bounds.allow(file, bytes), file, size)
}

/// Allocates as [`reserve`] does while `allow` permits it, which is asked for all bytes that are still missing.
fn reserve_if(allow: impl Fn(u64) -> io::Result<()>, file: &OwnedFd, size: u64) -> io::Result<()> {
    let mut taken = 0;
    while taken < size {
        allow(size - taken)?;
        let piece = PIECE.min(size - taken);
        // A piece takes a while, during which the timer of a profiler may interrupt.
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), taken, piece))?;
        taken += piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::cell::Cell;

    #[test]
    fn more_than_is_left_is_not_taken() {
        let file = memfd_create("hexagram-test", MemfdFlags::CLOEXEC).unwrap();
        let taken = || rustix::fs::fstat(&file).unwrap().st_size as u64;
        let left = |left: u64| {
            move |bytes: u64| if bytes > left { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        };
        let refused = reserve_if(left(4095), &file, 4096).unwrap_err();
        assert_eq!((refused.kind(), taken()), (io::ErrorKind::OutOfMemory, 0));
        // Other processes took the remaining memory between two pieces.
        let asked = Cell::new(0);
        let shrinking =
            |bytes: u64| left(if asked.replace(asked.get() + 1) == 0 { 2 * PIECE } else { 0 })(bytes);
        let refused = reserve_if(shrinking, &file, PIECE + 1).unwrap_err();
        assert_eq!((refused.kind(), taken()), (io::ErrorKind::OutOfMemory, PIECE));
        reserve_if(|_| Ok(()), &file, PIECE + 4096).unwrap();
        assert_eq!(taken(), PIECE + 4096);
    }
}
