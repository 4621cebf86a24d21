//! Decoders of start-up, fed with arbitrary bytes: for the fuzzers in `fuzz/`, and the tests that replay their
//! findings.

use super::handshake::authenticate;
use super::handshake::message::MessageReader;
use super::handshake::pending::PendingConnection;
use super::meeting::join_messages::{Hello, LeaderMessage, MemberMessage};
use super::meeting::peer_info::PeerTable;
use super::sockets::dial::DialRequest;
use super::variables::Placement;
use crate::backends::backend;
use std::io::{self, Read, Write};

/// Peer that sends `data` and then falls silent.
struct Other<'a> {
    /// Bytes that are left to be read.
    data: &'a [u8],
    /// Error of a read after them: blocking streams time out, others would block.
    then: io::ErrorKind,
    /// Number of bytes written to the peer.
    written: usize,
}

impl Read for Other<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.data.is_empty() { Err(self.then.into()) } else { self.data.read(into) }
    }
}

impl Write for Other<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Feeds the callee's side of the handshake. No bytes prove a key, or make the callee write much.
pub(crate) fn callee(data: &[u8]) {
    let mut connection = PendingConnection::new(Other { data, then: io::ErrorKind::WouldBlock, written: 0 });
    assert!(!matches!(connection.receive(b"a key that nobody guesses"), Ok(Some(_))));
    assert!(connection.connection.written < 100);
    assert!(connection.received.capacity() < 1 << 12);
}

/// Feeds the caller's side of the handshake. No bytes prove a key, or make the caller write much.
pub(crate) fn caller(data: &[u8]) {
    let mut other = Other { data, then: io::ErrorKind::TimedOut, written: 0 };
    assert!(authenticate(&mut other, b"a key that nobody guesses", &[]).is_err());
    assert!(other.written < 100);
}

/// Decodes a message as fields of any kind.
pub(crate) fn message(data: &[u8]) {
    let Ok(mut message) = MessageReader::receive(&mut &data[..]) else { return };
    for kind in data {
        let outcome = match kind % 4 {
            0 => message.number().map(drop),
            1 => message.text().map(drop),
            2 => message.bytes::<16>().map(drop),
            _ => message.bytes::<32>().map(drop),
        };
        if outcome.is_err() {
            return;
        }
    }
}

/// Decodes the messages of a member. A decoded message must survive another round trip.
pub(crate) fn join_request(data: &[u8]) {
    let _ = Hello::read(&mut MessageReader::from(data.to_vec()));
    if let Ok(intent) = MemberMessage::read(&mut MessageReader::from(data.to_vec())) {
        let wire = intent.write().whole();
        let again =
            MessageReader::receive(&mut &wire[..]).and_then(|mut message| MemberMessage::read(&mut message));
        if let MemberMessage::Join(request) = &intent
            && let Ok(backend) = request.settings.transport.parse().and_then(backend)
        {
            let _ = backend.loopback_only(&request.info.announcement);
        }
        // Long texts are cut when they are written.
        assert!(data.len() > 1000 || again.is_ok_and(|again| again == intent));
    }
}

/// Decodes the messages of rank 0.
pub(crate) fn peer_table(data: &[u8]) {
    let _ = LeaderMessage::read(MessageReader::from(data.to_vec()));
    let [size, data @ ..] = data else { return };
    let _ = PeerTable::read(&mut MessageReader::from(data.to_vec()), usize::from(*size), b"secret");
}

/// Decodes the call of a data connection.
pub(crate) fn call(data: &[u8]) {
    let _ = DialRequest::read(&mut MessageReader::from(data.to_vec()));
}

/// Decodes a message of a control connection.
pub(crate) fn control_message(data: &[u8]) {
    crate::control::fuzz_message(data);
}

/// Reads lines `NAME=value` as variables of a launcher. Variables that name files are left out, as the files of this
/// machine are no input.
pub(crate) fn variables(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let get = |name: &str| {
        let value = text.lines().find_map(|line| line.split_once('=').filter(|(key, _)| *key == name));
        value.filter(|_| !name.ends_with("_FILE")).map(|(_, value)| value.to_owned())
    };
    if let Ok(Some(placement)) = Placement::from_lookup(&get) {
        assert!(placement.rank < placement.size && placement.local_rank < placement.local_size);
    }
}
