//! Files without a name, whose contents are in memory.

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Creates a file that only this user can open, through its descriptor; it is empty, and closed in other programs.
///
/// If the system denies `memfd_create`, as old containers do, it is an unnamed file in a temporary folder, which
/// cannot be sealed.
///
/// # Errors
/// The error of `memfd_create`, if there is no such folder either.
pub fn memory_file(name: &str) -> io::Result<OwnedFd> {
    let denied = match memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Err(denied @ (Errno::PERM | Errno::NOSYS | Errno::ACCESS)) => denied,
        other => return Ok(other?),
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let folders = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let opened = folders.iter().find_map(|folder| open(folder, flags, Mode::RUSR | Mode::WUSR).ok());
    opened.ok_or_else(|| denied.into())
}
