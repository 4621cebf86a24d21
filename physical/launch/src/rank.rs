//! A rank as a process that cannot outlive its launcher.
//!
//! A rank leads a process group, so that the processes it starts can be ended with it. If the launcher is killed, two
//! mechanisms end the rank. The parent-death signal ends the rank itself; a guard, a pipe whose other end only the
//! launcher holds, ends its whole group.

use crate::descendants::Descendants;
use crate::rendezvous::RendezvousSetup;
use crate::{Job, Output, environment};
use hexagram_physical::launcher::{exhausted, more_threads};
use hexagram_physical::{Error, Result};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

/// Command of fcntl, from `asm-generic/fcntl.h`. The libc crate defines it for some C libraries only.
const F_SETSIG: libc::c_int = 10;

/// Running rank. On drop, it is killed with its group, and reaped.
pub(super) struct RankProcess {
    /// Process id, which is also the id of the group.
    pub(super) pid: Pid,
    /// Handle of the process. `None` once it has been reaped, since the id may then belong to a different group.
    child: Option<Child>,
    /// Guard of the group. It is closed after the rank is reaped, or by the kernel if this process dies.
    _guard: PipeWriter,
}

impl RankProcess {
    /// Starts `rank` of `job`. The calling thread has to outlive it.
    ///
    /// # Errors
    ///
    /// [`Error::System`], naming the program, if it cannot be run.
    pub(super) fn start(
        rank: usize,
        job: &Job,
        setup: &mut RendezvousSetup,
        descendants: &Descendants,
    ) -> Result<Self> {
        let mut command = Command::new(&job.program);
        command.args(&job.arguments).stdin(Stdio::null()).process_group(0);
        if job.output == Output::Prefixed {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let inherited = environment::describe(&mut command, rank, job, setup);
        descendants.mark(&mut command);
        spawn(command, inherited).map_err(|cause| cannot_start(rank, job, cause))
    }

    /// Returns the rank's stdout and stderr, once. `None` if they are not piped.
    pub(super) fn take_output(&mut self) -> Option<(OwnedFd, OwnedFd)> {
        let child = self.child.as_mut()?;
        Some((child.stdout.take()?.into(), child.stderr.take()?.into()))
    }

    /// Returns a future that completes when the rank has ended, before it is reaped.
    ///
    /// # Errors
    ///
    /// The system errors, if no descriptor is left.
    pub(super) fn ended(&self) -> io::Result<RankExit> {
        match end_by_descriptor(self.pid) {
            // Linux before 5.3, gVisor, or a filter of system calls.
            Err(error) if !exhausted(&error) => end_by_signal(self.pid),
            outcome => outcome,
        }
    }

    /// Returns the id of the process group.
    pub(super) fn group(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Signals the whole group. Errors are ignored, since the group may be gone or run as a different user.
    pub(super) fn signal(&self, signal: Signal) {
        if self.child.is_some() {
            let _ = rustix::process::kill_process_group(self.pid, signal);
        }
    }

    /// Kills the rest of the group, waits for the rank, and returns its exit status.
    ///
    /// # Errors
    ///
    /// The system errors, if the status is lost: this process ignores SIGCHLD, or another thread took it.
    pub(super) fn reap(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.child.take().map_or(Err(Errno::CHILD.into()), |mut child| child.wait())
    }

    /// Abandons a rank that survives SIGKILL.
    pub(super) fn abandon(&mut self) {
        self.child = None;
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // The status is no longer needed.
        let _ = self.reap();
    }
}

/// Future that completes when a process has ended.
type RankExit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Creates the future of a process's end from its descriptor.
fn end_by_descriptor(pid: Pid) -> io::Result<RankExit> {
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    // SAFETY: an owned descriptor stays open, and the same, until it is dropped with the `AsyncFd` that wraps it
    // here.
    let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
    Ok(Box::pin(async move {
        // The only failure is the end of the runtime, which ends this future too.
        let _ = process.readable().await;
    }))
}

/// Creates the future of a process's end from SIGCHLD, where processes have no descriptors. The signal is shared by all
/// children, so that each future checks its own.
fn end_by_signal(pid: Pid) -> io::Result<RankExit> {
    // Before the first check, so that no end is missed.
    let mut ends = signal(SignalKind::child())?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // A process whose state cannot be read has ended.
    let runs = move || matches!(waitid(WaitId::Pid(pid), options), Ok(None) | Err(Errno::INTR));
    Ok(Box::pin(async move { while runs() && ends.recv().await.is_some() {} }))
}

/// Starts the process, with its guard and the inherited files.
fn spawn(mut command: Command, inherited: Vec<Arc<OwnedFd>>) -> io::Result<RankProcess> {
    let (guarded, guard) = io::pipe()?;
    let launcher = rustix::process::getpid();
    // SAFETY: between fork and exec only system calls are safe, and `prepare` makes only system calls: it neither
    // allocates nor locks.
    unsafe {
        command.pre_exec(move || prepare(launcher, &guarded, &inherited));
    }
    // Dropping `command` drops the copies of the listening socket and of the guarded end in this process.
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    Ok(RankProcess { pid, child: Some(child), _guard: guard })
}

/// Prepares the new process, just before the program begins.
fn prepare(launcher: Pid, guarded: &PipeReader, inherited: &[Arc<OwnedFd>]) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    die_when_closed(guarded)?;
    // If the launcher died before those two calls, neither ever takes effect.
    if rustix::process::getppid() != Some(launcher) {
        return Err(Errno::CHILD.into());
    }
    rustix::io::fcntl_setfd(guarded, FdFlags::empty())?;
    inherited.iter().try_for_each(|file| Ok(rustix::io::fcntl_setfd(file, FdFlags::empty())?))
}

/// Asks the kernel to kill the group of this process once the other end of `guarded` is closed. No bytes are ever
/// written there, so that the close is the only event for which a pipe with O_ASYNC signals.
fn die_when_closed(guarded: &PipeReader) -> io::Result<()> {
    let group = rustix::process::getpid().as_raw_nonzero().get();
    let steps = [(libc::F_SETOWN, -group), (F_SETSIG, libc::SIGKILL), (libc::F_SETFL, libc::O_ASYNC)];
    for (command, argument) in steps {
        // SAFETY: these commands take an integer, and the descriptor is open while it is borrowed.
        if unsafe { libc::fcntl(guarded.as_raw_fd(), command, argument) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Creates the error of a rank that could not be started.
fn cannot_start(rank: usize, job: &Job, cause: io::Error) -> Error {
    let doing = format!("start {} as rank {rank}", job.program.display());
    let remedy = match Errno::from_io_error(&cause) {
        Some(Errno::MFILE) => return job.out_of_files(doing, cause),
        Some(Errno::AGAIN | Errno::NOMEM) => more_threads(),
        Some(Errno::NOENT) => {
            "check its name; a program that PATH does not list needs its folder, as in ./train".into()
        }
        Some(Errno::ACCESS) if job.program.is_dir() => "it is a folder; name a program in it".into(),
        Some(Errno::ACCESS) => {
            "make it executable (chmod +x), or name its interpreter first, as in python train.py".into()
        }
        Some(Errno::NOEXEC) => {
            "it is not an executable of this machine; name its interpreter first, as in python train.py"
                .into()
        }
        Some(Errno::NFILE) => "allow this machine more open files (sysctl fs.file-max)".into(),
        _ => "run it directly to see its error".into(),
    };
    Error::system(doing, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Tests the way for systems where processes have no descriptors.
    #[test]
    fn the_end_of_each_rank_is_noticed_by_signals_too() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let start = || Command::new("sleep").arg("600").spawn().unwrap();
        runtime.block_on(async {
            let mut first = start();
            let mut second = start();
            let [one, other] = [&first, &second].map(|child| end_by_signal(Pid::from_child(child)).unwrap());
            let soon = |end| tokio::time::timeout(Duration::from_secs(60), end);
            first.kill().unwrap();
            soon(one).await.unwrap();
            assert_eq!(second.try_wait().unwrap(), None);
            // It was not waited for, and its status is still there.
            assert_eq!(first.wait().unwrap().code(), None);
            second.kill().unwrap();
            soon(other).await.unwrap();
            second.wait().unwrap();
        });
    }
}
