//! One end of a control connection. It never blocks: unsent bytes are kept in memory, so that a peer that does not
//! read delays no other.

use super::health::HeartbeatOptions;
use super::messages::{CAP, ControlMessage};
use crate::bootstrap::handshake::message::MessageReader;
use crate::bootstrap::sockets::stream::RankStream;
use crate::error::{Error, Result};
use rustix::net::sockopt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Maximum number of bytes per read.
const READ_BYTES: usize = 4096;
/// Number of unanswered keepalive probes after which the system closes a connection.
const PROBES: u32 = 3;
/// Longest keepalive interval that the system accepts, in seconds.
const MOST_IDLE: u64 = 32_767;
/// Longest time that the system accepts for unacknowledged bytes, in milliseconds.
const MOST_UNHEARD: u32 = i32::MAX as u32;

/// Control connection to one peer.
pub(super) struct ControlStream {
    /// Connection to the peer.
    stream: RankStream,
    /// Bytes of an incomplete message.
    partial: Vec<u8>,
    /// Bytes that could not be written yet.
    unsent: Vec<u8>,
    /// Time since the last message, without the time in which this process could not receive.
    pub(super) silence: Duration,
}

impl ControlStream {
    /// Takes a connection over from the rendezvous.
    ///
    /// # Errors
    /// [`Error::System`] if the system refuses a socket option.
    pub(super) fn new(stream: RankStream, heartbeat: &HeartbeatOptions) -> Result<Self> {
        let set_up = || -> io::Result<()> {
            rustix::io::ioctl_fionbio(&stream, true)?;
            if matches!(stream, RankStream::Tcp(_)) {
                probe(&stream, heartbeat)?;
            }
            Ok(())
        };
        set_up()
            .map_err(|cause| Error::system("set up a control connection", cause, "report this as a bug"))?;
        Ok(ControlStream { stream, partial: Vec::new(), unsent: Vec::new(), silence: Duration::ZERO })
    }

    /// Sends a message after earlier ones. Keeps it if it cannot be written yet.
    pub(super) fn send(&mut self, message: &ControlMessage) {
        self.unsent.extend_from_slice(&message.write());
        self.flush();
    }

    /// Returns true if no bytes are left to write.
    pub(super) fn is_flushed(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Writes as much as possible. The error of a failed connection appears when it is read.
    pub(super) fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) if written > 0 => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    /// Receives all messages that have arrived, in a world of `size` ranks. Also returns the error that ended the
    /// connection, if any; the messages before it are valid.
    pub(super) fn receive(&mut self, size: usize) -> (Vec<ControlMessage>, Option<io::Error>) {
        let mut messages = Vec::new();
        let end = self.read(size, &mut messages).err();
        if !messages.is_empty() {
            self.silence = Duration::ZERO;
        }
        (messages, end)
    }

    /// Reads all available bytes, and appends the messages.
    fn read(&mut self, size: usize, messages: &mut Vec<ControlMessage>) -> io::Result<()> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.partial.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            while let Some(message) = MessageReader::split(&mut self.partial, CAP)? {
                messages.push(ControlMessage::read(message, size)?);
            }
        }
    }
}

impl AsFd for ControlStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Makes the system detect a peer that disappears without closing the connection. This is safe here, as control connections are
/// always read; a data connection may be full for longer.
fn probe(stream: &RankStream, heartbeat: &HeartbeatOptions) -> io::Result<()> {
    let whole_seconds = |duration: Duration| Duration::from_secs(duration.as_secs().clamp(1, MOST_IDLE));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, whole_seconds(heartbeat.silence))?;
    sockopt::set_tcp_keepintvl(stream, whole_seconds(heartbeat.beat))?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    let patience = heartbeat.system_tolerance().as_millis();
    sockopt::set_tcp_user_timeout(
        stream,
        u32::try_from(patience).map_or(MOST_UNHEARD, |ms| ms.min(MOST_UNHEARD)),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::socket;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn pair() -> (ControlStream, ControlStream) {
        let (a, b) = UnixStream::pair().unwrap();
        let line =
            |stream| ControlStream::new(RankStream::Local(stream), &HeartbeatOptions::default()).unwrap();
        (line(a), line(b))
    }

    #[test]
    fn a_peer_that_does_not_read_delays_nobody_and_misses_nothing() {
        let (mut from, mut to) = pair();
        let mut said = 0;
        while from.is_flushed() || said < 100_000 {
            from.send(&ControlMessage::Left(said % 1000));
            said += 1;
        }
        let mut heard = 0;
        while heard < said {
            let (messages, end) = to.receive(1000);
            assert!(end.is_none());
            for message in messages {
                assert_eq!(message, ControlMessage::Left(heard % 1000));
                heard += 1;
            }
            from.flush();
        }
        assert!(from.is_flushed());
    }

    #[test]
    fn any_silence_can_be_set_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for silence in [Duration::from_secs(1), Duration::from_secs(32_768), Duration::MAX] {
            let heartbeat = HeartbeatOptions { silence, ..HeartbeatOptions::default() };
            let socket = socket::called(TcpStream::connect(address).unwrap(), None).unwrap();
            ControlStream::new(RankStream::Tcp(socket), &heartbeat).unwrap();
        }
    }

    #[test]
    fn what_was_said_before_the_end_is_heard() {
        let (mut from, mut to) = pair();
        to.silence = Duration::from_secs(1);
        let message = ControlMessage::Failure { culprit: 3, cause: "died".into() };
        from.send(&message);
        // Not by a drop: a process that is just being started may hold a copy of the descriptor.
        rustix::net::shutdown(&from, rustix::net::Shutdown::Both).unwrap();
        let (messages, end) = to.receive(4);
        assert_eq!((messages, to.silence), (vec![message], Duration::ZERO));
        assert_eq!(end.unwrap().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn strange_words_end_the_line_and_count_for_nothing() {
        let (mut from, mut to) = pair();
        to.silence = Duration::from_secs(1);
        from.unsent = vec![0xff; 100];
        from.flush();
        let (messages, end) = to.receive(4);
        assert!(messages.is_empty() && to.silence > Duration::ZERO);
        assert_eq!(end.unwrap().kind(), io::ErrorKind::InvalidData);
    }
}
