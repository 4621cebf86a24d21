//! Reports a rank of this machine that has ended before it joined. Rank 0 has not registered it, so the other ranks
//! would wait for it until their deadline.

use crate::Job;
use crate::outcome::how;
use crate::rendezvous::RendezvousSetup;
use hexagram_physical::launcher::{Doorbell, EndedRank, RegisteredFlags, RendezvousAccess};
use hexagram_physical::transport::Bell;
use hexagram_physical::{Peer, Result};
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// Longest time that a launcher without ranks waits for its report to arrive on the other machine.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Reporter of ranks that end before rank 0 has registered them.
pub(super) struct EndReporter {
    /// Access to the rendezvous.
    access: RendezvousAccess,
    /// Flags of the ranks that rank 0 has registered.
    registered: RegisteredFlags,
    /// First rank of this machine.
    first: usize,
    /// True if ranks of other machines may be waiting.
    is_one_of_several: bool,
    /// Set once an unregistered rank has failed.
    has_failed: bool,
    /// First unregistered rank that has ended.
    ended: Option<EndedRank>,
    /// Bell that ends all reports.
    stop: Arc<Doorbell>,
    /// Channel whose end shows that all reports have ended.
    pending: (Option<Sender<()>>, Receiver<()>),
}

impl EndReporter {
    /// Creates the reporter of a job.
    ///
    /// # Errors
    /// [`Error::System`](hexagram_physical::Error::System) if the system has no descriptor left;
    /// [`Error::Setup`](hexagram_physical::Error::Setup) if the job's address is malformed.
    pub(super) fn new(job: &Job, setup: &RendezvousSetup) -> Result<Self> {
        let (sender, receiver) = channel();
        Ok(EndReporter {
            access: RendezvousAccess::new(&setup.address, setup.secret_bytes.clone(), job.size())?,
            registered: setup.registered.clone(),
            first: job.numbers().start,
            is_one_of_several: job.node.is_some(),
            has_failed: false,
            ended: None,
            stop: Arc::new(Doorbell::new()?),
            pending: (Some(sender), receiver),
        })
    }

    /// Reports the end of a rank of this machine, if rank 0 has not registered it.
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

    /// Starts a report on a separate thread.
    fn start(&self, report: impl FnOnce(&RendezvousAccess, &Doorbell) + Send + 'static) {
        let access = self.access.clone();
        let stop = Arc::clone(&self.stop);
        let pending = self.pending.0.clone();
        let thread = thread::Builder::new().name("hexagram-report".to_owned());
        // Without a thread, the other ranks fail at their deadline.
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
            // No value is ever sent: the wait ends when the reports end.
            let _ = self.pending.1.recv_timeout(REPORT_TIMEOUT);
        }
        self.stop.ring();
        // The address is free again when this returns, unless a connection to another machine hangs.
        let _ = self.pending.1.recv_timeout(REPORT_TIMEOUT);
    }
}
