//! Files that only this user may read: a secret of a job from the user, and the private key for TLS.

use crate::error::{Error, Result};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::FdFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;

/// Shortest secret, in bytes. Shorter ones could be guessed.
const SHORTEST: usize = 16;
/// Longest secret, in bytes. A longer file is not a secret.
pub(super) const LONGEST: usize = 4096;
/// Remedy for a missing secret.
pub(super) const MAKE: &str = "make one with `(umask 077; head -c 32 /dev/urandom | base64 > hexagram.secret)`, copy it to every \
                    host, and set HEXAGRAM_SECRET_FILE to its path on all ranks";

/// Reads the file that HEXAGRAM_SECRET_FILE names.
///
/// # Errors
/// [`Error::Setup`] if other users could read the file, or it contains no secret; [`Error::System`] if it cannot be
/// read.
pub fn read_given(path: &str) -> Result<Vec<u8>> {
    let failed = |cause: io::Error| {
        let doing = format!("read the job's secret from {path} (HEXAGRAM_SECRET_FILE)");
        Error::system(doing, cause, "use the path of a file that this user can read")
    };
    let file = open(Path::new(path), OFlags::empty()).map_err(failed)?;
    let refused = |(what, remedy)| {
        Error::setup(format!("the job's secret in {path} (HEXAGRAM_SECRET_FILE) {what}"), remedy)
    };
    private(&rustix::fs::fstat(&file).map_err(|errno| failed(errno.into()))?, path).map_err(refused)?;
    let mut secret = Vec::new();
    file.take(LONGEST as u64 + 1).read_to_end(&mut secret).map_err(failed)?;
    match secret.len() {
        0 => Err(refused(("is empty".to_owned(), MAKE.to_owned()))),
        length if length < SHORTEST => {
            Err(refused((format!("has {length} bytes, so it can be guessed"), MAKE.to_owned())))
        }
        length if length > LONGEST => {
            Err(refused((format!("has more than {LONGEST} bytes"), MAKE.to_owned())))
        }
        _ => keep_here(path).map(|()| secret).map_err(failed),
    }
}

/// Marks a descriptor that a launcher left open for this process to be closed in child programs.
fn keep_here(path: &str) -> io::Result<()> {
    let descriptor = path.strip_prefix("/proc/self/fd/").and_then(|number| number.parse::<RawFd>().ok());
    // Standard input, output and error are inherited.
    let Some(descriptor) = descriptor.filter(|descriptor| *descriptor > 2) else { return Ok(()) };
    // SAFETY: not -1, and borrowed only for the next call; a closed descriptor fails it with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC)?)
}

/// Refuses a private file that other users could read.
#[cfg(feature = "tls")]
pub(crate) fn private_file(path: &Path) -> Result<()> {
    let name = path.display().to_string();
    let file = open(path, OFlags::empty());
    let stat = file.and_then(|file| Ok(rustix::fs::fstat(&file)?));
    let stat = stat.map_err(|cause| Error::system(format!("read {name}"), cause, "correct its path"))?;
    private(&stat, &name).map_err(|(what, remedy)| Error::setup(format!("{name} {what}"), remedy))
}

/// Opens a file for reading, without waiting for the writer of a pipe.
pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    // A pipe in the place of the file would otherwise wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | flags;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Refuses anything but a regular file that only this user can read. The error has the reason and a remedy.
pub(super) fn private(stat: &Stat, path: &str) -> Result<(), (String, String)> {
    let me = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(("is not a regular file".to_owned(), MAKE.to_owned()));
    }
    if stat.st_uid != me {
        let what = format!("belongs to user {}, this process to user {me}", stat.st_uid);
        return Err((what, "make a separate copy for each user".to_owned()));
    }
    let mode = stat.st_mode & 0o777;
    if mode & 0o077 != 0 {
        return Err((format!("is open to others (mode {mode:04o})"), format!("run: chmod 600 {path}")));
    }
    Ok(())
}
