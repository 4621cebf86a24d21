//! A launcher's message to ranks that have not joined yet: one of its ranks has ended. The grammar is in `join`.

use super::join_messages::{Hello, LeaderMessage};
use super::rendezvous::{ListenContext, Rendezvous};
use crate::backends::socket::{Tls, TlsFiles};
use crate::bootstrap::handshake::acceptor::Acceptor;
use crate::bootstrap::handshake::authenticate;
use crate::bootstrap::sockets::stream::Listener;
use crate::bootstrap::variables::host_and_port;
use crate::error::{Peer, Result};
use crate::runtime::{self, PollFd, PollFlags};
use crate::waiting::doorbell::Doorbell;
use crate::waiting::stopwatch::Stopwatch;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest time for one step of an attempt.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Rank that has ended.
#[derive(Debug, Clone)]
pub struct EndedRank {
    /// Rank, host and process.
    pub peer: Peer,
    /// Description of its end, as a verb phrase.
    pub cause: String,
}

/// Everything needed to connect to the rendezvous of a job, or to listen there.
#[derive(Clone)]
pub struct RendezvousAccess {
    /// Address of the rendezvous.
    rendezvous: Rendezvous,
    /// Secret of the job.
    secret: Vec<u8>,
    /// TLS of the job, if it uses it.
    tls: Option<Tls>,
    /// Number of ranks of the job.
    size: usize,
}

impl RendezvousAccess {
    /// Creates the access to the rendezvous at an address, `host:port`, with TLS if this process's variables ask for it.
    ///
    /// # Errors
    /// [`Error::Setup`](crate::Error::Setup) if the address is malformed.
    pub fn new(address: &str, secret: Vec<u8>, size: usize) -> Result<Self> {
        let (host, port) = host_and_port("--addr", address)?;
        let rendezvous = Rendezvous::Tcp { host, port, agent: false };
        // The ranks report unusable files themselves.
        let tls = TlsFiles::from_env().ok().flatten().and_then(|files| Tls::load(&files).ok());
        Ok(RendezvousAccess { rendezvous, secret, tls, size })
    }

    /// Notifies rank 0 of the rank that has ended. Retries until `stop` is rung, since rank 0 may start later.
    pub fn notify_leader(&self, ended: &EndedRank, stop: &Doorbell) {
        let mut attempt = 0;
        while self.try_to_notify(ended, attempt).is_err() && !is_rung(stop) {
            attempt += 1;
        }
    }

    /// Connects to rank 0 once, and sends the message.
    fn try_to_notify(&self, EndedRank { peer, cause }: &EndedRank, attempt: usize) -> io::Result<()> {
        let mut stream =
            self.rendezvous.connect(attempt, STEP_TIMEOUT, self.tls.as_ref(), &mut Stopwatch::start())?;
        stream.set_timeout(STEP_TIMEOUT)?;
        authenticate(&mut stream, &self.secret, &Hello::Ended(peer.clone(), cause.clone()).write()).map(drop)
    }

    /// Listens at the rendezvous in place of a rank 0 that has ended, and notifies every rank that joins, until
    /// `stop` is rung.
    pub fn answer_for_leader(&self, EndedRank { peer, cause }: &EndedRank, stop: &Doorbell) {
        let alone = ListenContext { remote_ranks: 0, alternative: "", patience: STEP_TIMEOUT };
        let listener = self.rendezvous.listen(self.tls.clone(), alone);
        let acceptor =
            listener.and_then(|listener| Acceptor::<Listener>::new(listener, &self.secret, self.size));
        // Without the address, they can only wait for their deadline.
        let Ok(mut acceptor) = acceptor else { return };
        let answer = LeaderMessage::failed(peer, cause).whole();
        let mut answered = Vec::new();
        while !is_rung(stop) {
            for mut caller in acceptor.wait(None, &[stop.as_fd()]) {
                let _ = caller.connection.write_all(&answer);
                // Closed at the end: unread bytes would reset the connection before the answer is read.
                answered.push(caller.connection);
            }
        }
    }
}

/// Waits until `bell` is rung, or [`RETRY_INTERVAL`] has passed. Returns true if it was rung.
fn is_rung(bell: &Doorbell) -> bool {
    let mut sources = [PollFd::new(bell, PollFlags::IN)];
    runtime::poll(&mut sources, Some(RETRY_INTERVAL)).is_ok_and(|rung| rung > 0)
}
