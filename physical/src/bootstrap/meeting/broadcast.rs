//! One message to many connections, none of which may delay the others.

use super::rendezvous_member::ANSWER_TIMEOUT;
use crate::bootstrap::sockets::stream::RankStream;
use crate::runtime::{self, PollFd, PollFlags};
use crate::waiting::stopwatch::Stopwatch;
use std::io::{self, Write};
use std::time::Duration;

/// Longest time between two checks of the clock. A longer gap means that this process was stopped.
const LOOK: Duration = Duration::from_millis(250);

/// Sends `message` to all `streams`, and returns their number. A peer that reads nothing for [`ANSWER_TIMEOUT`] is
/// disconnected, since it could not decode the rest.
pub(crate) fn send_to_all<'a>(streams: impl Iterator<Item = &'a mut RankStream>, message: &[u8]) -> usize {
    let mut unsent: Vec<(&mut RankStream, usize)> = streams.map(|stream| (stream, 0)).collect();
    let count = unsent.len();
    let mut silent = Stopwatch::with_gap(LOOK);
    loop {
        let mut has_moved = false;
        unsent.retain_mut(|(stream, sent)| {
            let before = *sent;
            let is_unsent = send_some(stream, message, sent);
            has_moved |= *sent > before;
            is_unsent
        });
        if has_moved {
            silent = Stopwatch::with_gap(LOOK);
        }
        let left = ANSWER_TIMEOUT.saturating_sub(silent.elapsed());
        if unsent.is_empty() || left.is_zero() {
            break;
        }
        let mut sources: Vec<_> =
            unsent.iter().map(|(stream, _)| PollFd::new(&**stream, PollFlags::OUT)).collect();
        let _ = runtime::poll(&mut sources, Some(left.min(LOOK)));
    }
    for (stream, _) in unsent {
        let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
    }
    count
}

/// Writes as much of `message` as fits, from offset `sent` on. Returns true if some of it is left.
fn send_some(stream: &mut RankStream, message: &[u8], sent: &mut usize) -> bool {
    while *sent < message.len() {
        match stream.write(&message[*sent..]) {
            Ok(written) if written > 0 => *sent += written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
            // A peer that has ended needs no more bytes.
            _ => return false,
        }
    }
    false
}
