//! What a launcher says to ranks that are still rendezvous: one of its ranks has ended. Open this file to see how they learn
//! of a rank that rank 0 has never seen, or that rank 0 itself has ended. `join` has the grammar.

use super::acceptor::Acceptor;
use super::handshake::authenticate;
use super::join::{Hello, LeaderMessage};
use super::rendezvous::{ListenContext, Listener, Rendezvous};
use crate::doorbell::Doorbell;
use crate::error::Peer;
use crate::runtime::{self, PollFd, PollFlags};
use crate::socket::Tls;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest that one step of a try may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A rank that has ended, and how, as a verb phrase.
#[derive(Debug, Clone)]
pub(crate) struct EndedRank {
    pub(crate) peer: Peer,
    pub(crate) cause: String,
}

/// Where the others meet, and what they have to prove there.
#[derive(Clone)]
pub(crate) struct RendezvousAccess {
    pub(crate) rendezvous: Rendezvous,
    pub(crate) secret: Vec<u8>,
    pub(crate) tls: Option<Tls>,
    /// How many ranks meet there.
    pub(crate) size: usize,
}

impl RendezvousAccess {
    /// Tells rank 0 who has ended; tries again, as rank 0 may start later, until `stop` is rung.
    pub(crate) fn notify_leader(&self, ended: &EndedRank, stop: &Doorbell) {
        let mut attempt = 0;
        while self.try_to_notify(ended, attempt).is_err() && !is_rung(stop) {
            attempt += 1;
        }
    }

    fn try_to_notify(&self, EndedRank { peer, cause }: &EndedRank, attempt: usize) -> io::Result<()> {
        let mut stream = self.rendezvous.connect(attempt, STEP_TIMEOUT, self.tls.as_ref())?;
        stream.set_timeout(STEP_TIMEOUT)?;
        authenticate(&mut stream, &self.secret, &Hello::Ended(peer.clone(), cause.clone()).write()).map(drop)
    }

    /// Tells newcomers who has ended, in the place of a rank 0 that has ended, until `stop` is rung.
    pub(crate) fn answer_for_leader(&self, EndedRank { peer, cause }: &EndedRank, stop: &Doorbell) {
        let alone = ListenContext { remote_ranks: 0, alternative: "" };
        let listener = self.rendezvous.listen(self.tls.clone(), alone);
        let acceptor =
            listener.and_then(|listener| Acceptor::<Listener>::new(listener, &self.secret, self.size));
        // Without the address they can only wait for their deadline.
        let Ok(mut acceptor) = acceptor else { return };
        let answer = LeaderMessage::failed(peer, cause).whole();
        let mut answered = Vec::new();
        while !is_rung(stop) {
            for mut caller in acceptor.wait(None, &[stop.as_fd()]) {
                let _ = caller.connection.write_all(&answer);
                // Closed at the end: bytes that nobody has read would cut the connection before the answer.
                answered.push(caller.connection);
            }
        }
    }
}

/// Whether `bell` is rung before the next try is due.
fn is_rung(bell: &Doorbell) -> bool {
    let mut sources = [PollFd::new(bell, PollFlags::IN)];
    runtime::poll(&mut sources, Some(RETRY_INTERVAL)).is_ok_and(|rung| rung > 0)
}
