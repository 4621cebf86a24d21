//! Tells the ranks that are still rendezvous which rank of this machine has ended: rank 0 has not seen it yet, so that they
//! would wait for it until their deadline. Open this file to see what happens when a rank dies before it has joined.

use super::Job;
use super::outcome::how;
use super::rendezvous::RendezvousSetup;
use crate::bootstrap::registered::RegisteredFlags;
use crate::bootstrap::report::{EndedRank, RendezvousAccess};
use crate::bootstrap::{Rendezvous, host_and_port};
use crate::doorbell::Doorbell;
use crate::error::{Peer, Result};
use crate::socket::{Tls, TlsFiles};
use crate::transport::Bell;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long a launcher that has no ranks any more waits until its report has arrived on another machine.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Watches for the end of ranks that rank 0 does not know.
pub(super) struct EndReporter {
    access: RendezvousAccess,
    registered: RegisteredFlags,
    /// The number of this machine's first rank.
    first: usize,
    /// Whether ranks of other machines may be waiting.
    is_one_of_several: bool,
    /// Whether a rank has failed without rank 0's knowledge.
    has_failed: bool,
    /// The first rank that has ended without rank 0's knowledge.
    ended: Option<EndedRank>,
    stop: Arc<Doorbell>,
    /// Ends when all reports have.
    pending: (Option<Sender<()>>, Receiver<()>),
}

impl EndReporter {
    /// # Errors
    /// [`Error::System`] if the system has no descriptor left; [`Error::Setup`] if the job's address is none.
    pub(super) fn new(job: &Job, setup: &RendezvousSetup) -> Result<Self> {
        let (host, port) = host_and_port("--addr", &setup.address)?;
        let rendezvous = Rendezvous::Tcp { host, port, agent: false };
        // The ranks say so themselves if they cannot use them.
        let tls = TlsFiles::from_env().ok().flatten().and_then(|files| Tls::load(&files).ok());
        let secret = setup.secret_bytes.clone();
        let (sender, receiver) = channel();
        Ok(EndReporter {
            access: RendezvousAccess { rendezvous, secret, tls, size: job.size() },
            registered: setup.registered.clone(),
            first: job.numbers().start,
            is_one_of_several: job.node.is_some(),
            has_failed: false,
            ended: None,
            stop: Arc::new(Doorbell::new()?),
            pending: (Some(sender), receiver),
        })
    }

    /// Takes note that a rank of this machine has ended.
    pub(super) fn rank_ended(&mut self, rank: usize, pid: u32, status: &io::Result<ExitStatus>) {
        if self.registered.is_registered(rank - self.first) {
            return;
        }
        self.has_failed |= !status.as_ref().is_ok_and(ExitStatus::success);
        let host = rustix::system::uname().nodename().to_string_lossy().into();
        let ended = EndedRank { peer: Peer { rank, host, pid }, cause: how(status) };
        let is_first = self.ended.is_none();
        let first = self.ended.get_or_insert(ended).clone();
        if rank == 0 {
            self.start(move |access, stop| access.answer_for_leader(&first, stop));
        } else if is_first {
            self.start(move |access, stop| access.notify_leader(&first, stop));
        }
    }

    fn start(&self, report: impl FnOnce(&RendezvousAccess, &Doorbell) + Send + 'static) {
        let access = self.access.clone();
        let stop = Arc::clone(&self.stop);
        let pending = self.pending.0.clone();
        let thread = thread::Builder::new().name("hexagram-report".to_owned());
        // Without it they find out at their deadline.
        let _ = thread.spawn(move || {
            report(&access, &stop);
            drop(pending);
        });
    }
}

impl Drop for EndReporter {
    fn drop(&mut self) {
        self.pending.0 = None;
        if self.is_one_of_several && self.has_failed {
            // Nothing is sent: it ends when the reports do.
            let _ = self.pending.1.recv_timeout(LAST_WORDS);
        }
        self.stop.ring();
        // The address is free again when this returns, unless a connection to another machine hangs.
        let _ = self.pending.1.recv_timeout(LAST_WORDS);
    }
}
