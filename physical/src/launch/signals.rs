//! The signals that tell a launcher to end its job: SIGINT (Ctrl-C), SIGTERM (a job manager) and SIGHUP (the terminal).

use crate::error::{Error, Result};
use std::fs;
use std::future;
use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives those signals, from when it is made.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// # Errors
    ///
    /// [`Error::System`] if the system does not let this process handle signals.
    pub(super) fn listen() -> Result<Self> {
        let listen = || -> io::Result<Self> {
            let hangup =
                if is_ignored(SignalKind::hangup()) { None } else { Some(signal(SignalKind::hangup())?) };
            Ok(Signals {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                hangup,
            })
        };
        listen()
            .map_err(|cause| Error::system("handle signals", cause, "see whether this process is restricted"))
    }

    /// The number of the next signal.
    pub(super) async fn next(&mut self) -> i32 {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => future::pending().await,
            }
        };
        let kind = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = hangup => SignalKind::hangup(),
        };
        kind.as_raw_value()
    }
}

/// Whether this process ignores a signal: `nohup` asks that of SIGHUP, and to handle it would undo that.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored & (1 << (kind.as_raw_value() - 1)) != 0
}
