//! What a launcher says to ranks that are still meeting: one of its ranks has ended. Open this file to see how they learn
//! of a rank that rank 0 has never seen, or that rank 0 itself has ended. `join` has the grammar.

use super::hall::Hall;
use super::handshake::approach;
use super::join::{Answer, Hello};
use super::meeting::{Expected, Listener, Meeting};
use crate::doorbell::{Doorbell, timespec};
use crate::error::Peer;
use crate::socket::Tls;
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest that one step of a try may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two tries.
const RETRY: Duration = Duration::from_millis(50);

/// A rank that has ended, and how, as a verb phrase.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) peer: Peer,
    pub(crate) cause: String,
}

/// Where the others meet, and what they have to prove there.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) meeting: Meeting,
    pub(crate) secret: Vec<u8>,
    pub(crate) tls: Option<Tls>,
    /// How many ranks meet there.
    pub(crate) size: usize,
}

impl Place {
    /// Tells rank 0 who has ended; tries again, as rank 0 may start later, until `stop` is rung.
    pub(crate) fn tell(&self, ended: &Ended, stop: &Doorbell) {
        let mut attempt = 0;
        while self.try_to_tell(ended, attempt).is_err() && !is_rung(stop) {
            attempt += 1;
        }
    }

    fn try_to_tell(&self, Ended { peer, cause }: &Ended, attempt: usize) -> io::Result<()> {
        let mut stream = self.meeting.connect(attempt, PATIENCE, self.tls.as_ref())?;
        stream.set_patience(PATIENCE)?;
        approach(&mut stream, &self.secret, &Hello::Ended(peer.clone(), cause.clone()).write()).map(drop)
    }

    /// Tells newcomers who has ended, in the place of a rank 0 that has ended, until `stop` is rung.
    pub(crate) fn answer(&self, Ended { peer, cause }: &Ended, stop: &Doorbell) {
        let nobody = Expected { elsewhere: 0, choose: "" };
        let listener = self.meeting.listen(self.tls.clone(), nobody);
        let hall = listener.and_then(|listener| Hall::<Listener>::new(listener, &self.secret, self.size));
        // Without the address they can only wait for their deadline.
        let Ok(mut hall) = hall else { return };
        let answer = Answer::failed(peer, cause).whole();
        let mut answered = Vec::new();
        while !is_rung(stop) {
            for mut caller in hall.wait(None, &[stop.as_fd()]) {
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
    poll(&mut sources, Some(&timespec(RETRY))).is_ok_and(|rung| rung > 0)
}
