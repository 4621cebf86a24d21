//! What a launcher is told by signals: to end its job, by SIGINT (Ctrl-C), SIGTERM (a job manager) and SIGHUP (the
//! terminal); to stop it, by SIGTSTP (Ctrl-Z); and to let it go on, by SIGCONT.

use crate::error::{Error, Result};
use std::fs;
use std::future;
use std::io;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// Longer than a signal takes that was sent already.
const ARRIVAL: Duration = Duration::from_secs(1);

/// What the launcher is to do with its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// End it, because of the signal with this number.
    End(i32),
    /// Stop it, and this process with it.
    Stop,
    /// Let it go on.
    Continue,
}

/// Receives those signals, from when it is made.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    stop: Option<Signal>,
    proceed: Signal,
}

impl Signals {
    /// # Errors
    ///
    /// [`Error::System`] if the system does not let this process handle signals.
    pub(super) fn listen() -> Result<Self> {
        let listen = || -> io::Result<Self> {
            Ok(Signals {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                hangup: unless_ignored(SignalKind::hangup())?,
                stop: unless_ignored(SignalKind::from_raw(libc::SIGTSTP))?,
                proceed: signal(SignalKind::from_raw(libc::SIGCONT))?,
            })
        };
        listen()
            .map_err(|cause| Error::system("handle signals", cause, "see whether this process is restricted"))
    }

    /// The next request.
    pub(super) async fn next(&mut self) -> Request {
        tokio::select! {
            // In this order: who is told to stop and then to go on must not end up stopped.
            biased;
            _ = self.interrupt.recv() => Request::End(libc::SIGINT),
            _ = self.terminate.recv() => Request::End(libc::SIGTERM),
            () = received(&mut self.hangup) => Request::End(libc::SIGHUP),
            () = received(&mut self.stop) => Request::Stop,
            _ = self.proceed.recv() => Request::Continue,
        }
    }

    /// Stops this process, until somebody lets it go on; unless somebody has done so already.
    pub(super) async fn stop_here(&mut self) {
        // Lets the runtime hear of that.
        tokio::task::yield_now().await;
        if self.proceed.poll_recv(&mut Context::from_waker(Waker::noop())).is_pending() {
            // SAFETY: raise has no preconditions. It stops the whole process before it returns to this thread.
            unsafe { libc::raise(libc::SIGSTOP) };
            // What has let it go on is on its way, and is not to be taken for the answer to a later stop.
            let _ = timeout(ARRIVAL, self.proceed.recv()).await;
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => future::pending().await,
    }
}

fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    if is_ignored(kind) { Ok(None) } else { signal(kind).map(Some) }
}

/// Whether this process ignores a signal: `nohup` asks that of SIGHUP, and to handle it would undo that.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored & (1 << (kind.as_raw_value() - 1)) != 0
}
