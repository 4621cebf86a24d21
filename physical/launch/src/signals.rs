//! Signals to a launcher: SIGINT (Ctrl-C), SIGTERM (a job manager) and SIGHUP (the terminal) end its job, SIGTSTP
//! (Ctrl-Z) stops it, and SIGCONT continues it.

use hexagram_physical::{Error, Result};
use std::fs;
use std::future;
use std::io;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// Longest time until a signal that was sent already arrives.
const ARRIVAL: Duration = Duration::from_secs(1);

/// Request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalRequest {
    /// End the job, because of the signal with this number.
    End(i32),
    /// Stop the job, and this process with it.
    Stop,
    /// Continue the job.
    Continue,
}

/// Receiver of those signals, from its creation on.
pub(super) struct Signals {
    /// SIGINT.
    interrupt: Signal,
    /// SIGTERM.
    terminate: Signal,
    /// SIGHUP, unless this process ignores it.
    hangup: Option<Signal>,
    /// SIGTSTP, unless this process ignores it.
    stop: Option<Signal>,
    /// SIGCONT.
    proceed: Signal,
}

impl Signals {
    /// Starts to receive signals.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the system does not allow this process to handle signals.
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
        listen().map_err(|cause| {
            Error::system("handle signals", cause, "check whether a sandbox restricts this process")
        })
    }

    /// Returns the next request.
    pub(super) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            // In this order: a job that is stopped and then continued must not end up stopped.
            biased;
            _ = self.interrupt.recv() => SignalRequest::End(libc::SIGINT),
            _ = self.terminate.recv() => SignalRequest::End(libc::SIGTERM),
            () = received(&mut self.hangup) => SignalRequest::End(libc::SIGHUP),
            () = received(&mut self.stop) => SignalRequest::Stop,
            _ = self.proceed.recv() => SignalRequest::Continue,
        }
    }

    /// Stops this process until it is continued, unless it has been continued already.
    pub(super) async fn stop_here(&mut self) {
        // Gives the runtime time to receive a SIGCONT that was already sent.
        tokio::task::yield_now().await;
        if self.proceed.poll_recv(&mut Context::from_waker(Waker::noop())).is_pending() {
            // SAFETY: raise has no preconditions. It stops the whole process before it returns to this thread.
            unsafe { libc::raise(libc::SIGSTOP) };
            // The SIGCONT that continued it is on its way, and must not answer a later stop.
            let _ = timeout(ARRIVAL, self.proceed.recv()).await;
        }
    }
}

/// Waits until a signal arrives; forever if it is `None`.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => future::pending().await,
    }
}

/// Starts to receive a signal, unless this process ignores it.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<Signal>> {
    if is_ignored(kind) { Ok(None) } else { signal(kind).map(Some) }
}

/// Returns true if this process ignores a signal. `nohup` sets that for SIGHUP, and handling the signal would undo
/// it.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored & (1 << (kind.as_raw_value() - 1)) != 0
}
