//! Standard output that is not lost in silence: what a program prints gets there, or the program learns that it did not.
//! Open this when a program prints results, or when one exits with 0 though nobody has got them.
//!
//! | standard output is | then |
//! |---|---|
//! | a full disk, or a device that fails | printing is an error: say so on stderr, and exit with 1 |
//! | closed (`>&-`) | the same, before any work is done ([`check`]) |
//! | a pipe that nobody reads any more (`\| head -1`) | end quietly, with 141, as a shell reports programs that SIGPIPE ends |

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of a program whose output nobody reads any more: 128 plus the number of SIGPIPE.
///
/// The signal itself is ignored, as in every Rust program: it would end ranks whose peer's socket has closed.
pub const READER_GONE: u8 = 141;

/// Standard output could not be written, so that what was printed is lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot print: {0}; what was printed is lost, so make room where standard output goes, or send it elsewhere"
)]
pub struct PrintError(#[from] io::Error);

impl PrintError {
    /// Returns whether this is no failure, but a reader that has seen enough.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }

    /// Says on standard error, in the name of `program`, that output is lost, unless its reader has gone away. Returns
    /// what to exit with: 1, or [`READER_GONE`].
    pub fn report(&self, program: &str) -> ExitCode {
        if self.is_reader_gone() {
            return ExitCode::from(READER_GONE);
        }
        // If that is gone, too, the exit code has to tell.
        let _ = io::stderr().write_all(format!("{program}: {self}\n").as_bytes());
        ExitCode::FAILURE
    }
}

/// Prints a line, which is in the system's hands when this returns.
///
/// # Errors
/// [`PrintError`] if it is not.
pub fn print(line: &str) -> Result<(), PrintError> {
    check()?;
    // In one write: the ranks of a job may share one terminal.
    io::stdout().write_all(format!("{line}\n").as_bytes())?;
    Ok(io::stdout().flush()?)
}

/// Fails if standard output was closed when the program began: to be called before the work whose result is to be
/// printed, and before other processes are started, which cannot tell any more.
///
/// # Errors
/// [`PrintError`] if it was.
pub fn check() -> Result<(), PrintError> {
    match WAS_CLOSED.load(Ordering::Relaxed) {
        true => Err(PrintError(rustix::io::Errno::BADF.into())),
        false => Ok(()),
    }
}

/// Whether standard output was closed before `main`. Later nobody can tell: the standard library opens /dev/null for
/// descriptors that are closed, so that no file of the program's own gets their numbers.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

#[cfg(target_os = "linux")]
extern "C" fn look_at_stdout() {
    // SAFETY: asks for the flags of a descriptor, which may be closed; no memory is involved.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// What the loader calls before `main`, and before the standard library opens anything.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions that take nothing they need; this one uses nothing of the standard
// library that has to be set up first.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look_at_stdout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_is_gone_is_no_failure() {
        let error = |kind: io::ErrorKind| PrintError(kind.into());
        assert!(error(io::ErrorKind::BrokenPipe).is_reader_gone());
        assert!(!error(io::ErrorKind::StorageFull).is_reader_gone());
        assert!(error(io::ErrorKind::StorageFull).to_string().starts_with("cannot print: "));
    }
}
