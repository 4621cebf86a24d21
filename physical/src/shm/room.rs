//! Taking memory for a file without name, only as far as there is some: what the system has given away cannot be taken
//! back from it, and it would kill processes, of this job or of others, to find more.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Taken at once, so that ranks that take memory at the same time see what the others have.
const PIECE: u64 = 32 << 20;
/// Left to everybody else, in bytes.
const SPARE: u64 = 64 << 20;

/// Gives `file` memory of its own for `size` bytes.
///
/// # Errors
/// Out of memory, before the system is; otherwise what the system says.
pub(super) fn take(file: &OwnedFd, size: u64) -> io::Result<()> {
    take_of(left, file, size)
}

/// Bytes that the machine can still give without killing anybody, if it says so.
fn left() -> Option<u64> {
    available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn take_of(left: impl Fn() -> Option<u64>, file: &OwnedFd, size: u64) -> io::Result<()> {
    let mut taken = 0;
    while taken < size {
        let needed = (size - taken).saturating_add(SPARE);
        if left().is_some_and(|left| left < needed) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let piece = PIECE.min(size - taken);
        // A piece takes a while, in which a profiler's timer may go off.
        retry_on_intr(|| fallocate(file, FallocateFlags::empty(), taken, piece))?;
        taken += piece;
    }
    Ok(())
}

fn available(table: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::cell::Cell;

    #[test]
    fn the_table_of_memory_is_read() {
        assert_eq!(available("MemTotal:  9 kB\nMemAvailable:     12 kB\n"), Some(12 << 10));
        for table in ["", "MemAvailable: 12", "MemAvailable: x kB", "MemFree: 12 kB"] {
            assert_eq!(available(table), None, "{table}");
        }
    }

    #[test]
    fn more_than_is_left_is_not_taken() {
        let file = memfd_create("hexagram-test", MemfdFlags::CLOEXEC).unwrap();
        let taken = || rustix::fs::fstat(&file).unwrap().st_size as u64;
        let refused = take_of(|| Some(SPARE + 4095), &file, 4096).unwrap_err();
        assert_eq!((refused.kind(), taken()), (io::ErrorKind::OutOfMemory, 0));
        // Others took what was left between two pieces.
        let asked = Cell::new(0);
        let left = || Some(if asked.replace(asked.get() + 1) == 0 { SPARE + 2 * PIECE } else { SPARE });
        let refused = take_of(left, &file, PIECE + 1).unwrap_err();
        assert_eq!((refused.kind(), taken()), (io::ErrorKind::OutOfMemory, PIECE));
        take_of(|| None, &file, PIECE + 4096).unwrap();
        assert_eq!(taken(), PIECE + 4096);
    }
}
