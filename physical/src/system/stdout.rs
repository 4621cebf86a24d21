//! Standard output without silent losses: the lines of a program arrive, or the program gets an error. Use it in
//! every program that prints results, so that it does not exit with 0 although the results were lost.
//!
//! | standard output is | then |
//! |---|---|
//! | a full disk, or a device that fails | printing is an error: report it on stderr, and exit with 1 |
//! | closed (`>&-`) | the same, before any work is done ([`check`]) |
//! | a pipe whose reader has closed it (`\| head -1`) | end quietly, with 141, as a shell reports programs that SIGPIPE ends |

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a program whose output has no reader any more: 128 plus the number of SIGPIPE.
///
/// The signal itself is ignored, as in every Rust program: it would end ranks whose peer's socket has closed.
pub const READER_GONE: u8 = 141;

/// Error of standard output, by which a line is lost.
#[derive(Debug)]
pub struct PrintError(io::Error);

impl fmt::Display for PrintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot print: {}; output is lost: free space where standard output goes, or redirect it",
            self.0
        )
    }
}

impl std::error::Error for PrintError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl From<io::Error> for PrintError {
    fn from(cause: io::Error) -> Self {
        PrintError(cause)
    }
}

impl PrintError {
    /// Returns true if the reader has closed its end, which is not a failure of the program.
    pub fn is_reader_gone(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }

    /// Prints the error on standard error, in the name of `program`, unless the reader has closed its end. Returns the
    /// code to exit with: 1, or [`READER_GONE`].
    pub fn report(&self, program: &str) -> ExitCode {
        if self.is_reader_gone() {
            return ExitCode::from(READER_GONE);
        }
        // If standard error is gone, too, only the exit code remains.
        let _ = io::stderr().write_all(format!("{program}: {self}\n").as_bytes());
        ExitCode::FAILURE
    }
}

/// Prints a line, which the system has taken when this returns.
///
/// # Errors
/// [`PrintError`] if the write fails.
pub fn print(line: &str) -> Result<(), PrintError> {
    check()?;
    // In one write: the ranks of a job may share one terminal.
    io::stdout().write_all(format!("{line}\n").as_bytes())?;
    Ok(io::stdout().flush()?)
}

/// Fails if standard output was closed when the program began. Call it before the work whose result will be printed,
/// and before other processes are started, which cannot detect it.
///
/// # Errors
/// [`PrintError`] if it was closed.
pub fn check() -> Result<(), PrintError> {
    match WAS_CLOSED.load(Ordering::Relaxed) {
        true => Err(PrintError(rustix::io::Errno::BADF.into())),
        false => Ok(()),
    }
}

/// True if standard output was closed before `main`. Later it cannot be detected: the standard library opens
/// /dev/null in place of closed descriptors, so that no file of the program gets their numbers.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Records whether standard output is open.
#[cfg(target_os = "linux")]
extern "C" fn look_at_stdout() {
    // SAFETY: asks for the flags of a descriptor, which may be closed; no memory is involved.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Function that the loader calls before `main`, and before the standard library opens anything.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions without required arguments; this one uses no part of the standard
// library that needs initialisation.
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
