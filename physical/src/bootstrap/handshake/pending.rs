//! A connection from its acceptance to the end of its first message.
//!
//! ```text
//! caller → callee   greeting
//! callee → caller   greeting proof
//! caller → callee   proof message       message as in `message`: at most MAX_FIRST_MESSAGE bytes,
//!                                       or MAX_CLAIM bytes after a wrong proof
//! ```

use super::message::{LENGTH, MessageReader, malformed};
use super::{Build, GREETING, MAGIC, PROOF, Responder, TLS_ALERT, TLS_HELLO};
use crate::bootstrap::meeting::join_messages::Hello;
use crate::error::Peer;
use crate::runtime::{self, Instant};
use std::io::{self, Read, Write};

/// Longest message accepted after a wrong proof, in bytes.
const MAX_CLAIM: usize = 1 << 10;
/// Longest first message of a peer that has proved the secret, in bytes.
const MAX_FIRST_MESSAGE: usize = 8 << 10;

/// Connection whose peer has proved the secret, with its first message.
pub(crate) struct Authenticated<C> {
    /// Connection, ready for the bytes after the first message.
    pub(crate) connection: C,
    /// Build of the peer.
    pub(crate) build: Build,
    /// First message of the peer, not yet decoded.
    pub(crate) message: MessageReader,
}

/// Next step of the handshake.
enum HandshakeStep {
    /// The first bytes, which identify the protocol.
    Magic,
    /// The rest of the greeting.
    Greeting,
    /// The proof of the peer.
    Proof(Responder),
    /// The length of the first message.
    Length(Build),
    /// The first message.
    Message(Build),
    /// The length of the message after a wrong proof. Its content proves nothing, but is useful in the warning.
    DeniedLength,
    /// The message after a wrong proof.
    DeniedMessage,
}

/// Steps of the handshake that a connection has completed, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakeProgress {
    /// Nothing was received.
    Silent,
    /// Some bytes were received.
    Sending,
    /// The greeting was received and answered.
    Greeted,
    /// The peer has proved the secret.
    Proved,
}

/// Returns the error for a peer, described by `who`, that has proved a different secret.
fn denied(who: &str) -> io::Error {
    let what = format!("{who} has a different secret: set the same HEXAGRAM_SECRET_FILE on all ranks");
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

/// Accepted connection whose first message is not complete.
pub(crate) struct PendingConnection<C> {
    /// The connection itself.
    pub(crate) connection: C,
    /// Next step.
    step: HandshakeStep,
    /// All bytes received so far.
    pub(crate) received: Vec<u8>,
    /// Length of `received` at which the step is complete.
    needed: usize,
    /// Instant of the acceptance.
    pub(crate) accepted_at: Instant,
    /// Set once any byte has arrived, even if it is still inside TLS.
    pub(crate) has_sent: bool,
}

impl<C: Read + Write> PendingConnection<C> {
    /// Creates the state of a connection that was just accepted.
    pub(crate) fn new(connection: C) -> Self {
        PendingConnection {
            connection,
            step: HandshakeStep::Magic,
            received: Vec::new(),
            needed: MAGIC.len(),
            accepted_at: runtime::now(),
            has_sent: false,
        }
    }

    /// Returns the steps that the connection has completed.
    pub(crate) fn progress(&self) -> HandshakeProgress {
        match &self.step {
            HandshakeStep::Magic | HandshakeStep::Greeting if self.has_sent || !self.received.is_empty() => {
                HandshakeProgress::Sending
            }
            HandshakeStep::Magic | HandshakeStep::Greeting => HandshakeProgress::Silent,
            HandshakeStep::Proof(_) | HandshakeStep::DeniedLength | HandshakeStep::DeniedMessage => {
                HandshakeProgress::Greeted
            }
            HandshakeStep::Length(_) | HandshakeStep::Message(_) => HandshakeProgress::Proved,
        }
    }

    /// Reads the bytes that have arrived. Returns the build of the peer once the first message is complete, and
    /// `None` before.
    ///
    /// # Errors
    /// The errors of the connection; an error for a peer that violates the protocol or proves a different secret.
    pub(crate) fn receive(&mut self, key: &[u8]) -> io::Result<Option<Build>> {
        let mut piece = [0; 1024];
        loop {
            // Never beyond the step: bytes after the first message belong to another reader.
            let room = (self.needed - self.received.len()).min(piece.len());
            match self.connection.read(&mut piece[..room]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.received.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if self.received.len() == self.needed
                && let Some(build) = self.advance(key)?
            {
                return Ok(Some(build));
            }
        }
    }

    /// Completes a step. Returns the peer's build after the last one.
    fn advance(&mut self, key: &[u8]) -> io::Result<Option<Build>> {
        let (step, more) = match &self.step {
            HandshakeStep::Magic if self.received[0] == TLS_HELLO => return Err(self.refuse_tls()),
            HandshakeStep::Magic if self.received != MAGIC => return Err(malformed()),
            HandshakeStep::Magic => (HandshakeStep::Greeting, GREETING - MAGIC.len()),
            HandshakeStep::Greeting => {
                let greeting = self.received[..].try_into().map_err(|_| malformed())?;
                let (answer, received) = Responder::new(greeting, key)?;
                self.connection.write_all(&received)?;
                (HandshakeStep::Proof(answer), PROOF)
            }
            HandshakeStep::Proof(answer) => match answer.conclude(key, &self.received[GREETING..]) {
                Ok(build) => (HandshakeStep::Length(build), LENGTH),
                Err(_) => (HandshakeStep::DeniedLength, LENGTH),
            },
            HandshakeStep::DeniedLength => {
                match MessageReader::length(&self.received[GREETING + PROOF..], MAX_CLAIM) {
                    Ok(length) if length > 0 => (HandshakeStep::DeniedMessage, length),
                    _ => return Err(denied("a peer")),
                }
            }
            HandshakeStep::DeniedMessage => return Err(self.claim()),
            HandshakeStep::Length(build) => {
                let length = MessageReader::length(&self.received[GREETING + PROOF..], MAX_FIRST_MESSAGE)?;
                if length == 0 {
                    return Ok(Some(*build));
                }
                (HandshakeStep::Message(*build), length)
            }
            HandshakeStep::Message(build) => return Ok(Some(*build)),
        };
        self.step = step;
        self.needed += more;
        Ok(None)
    }

    /// Returns the error for a peer with a different secret, with the rank, host and process that it claims.
    fn claim(&self) -> io::Error {
        let received = self.received[GREETING + PROOF + LENGTH..].to_vec();
        match Hello::read(&mut MessageReader::from(received)) {
            Ok(Hello::Rank(peer, _)) => {
                // The claim is arbitrary. Names of hosts are no longer, and have no other characters.
                let host: String = peer.host.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
                denied(&Peer { host: host.into(), ..peer }.to_string())
            }
            _ => denied("a peer"),
        }
    }

    /// Answers a TLS greeting with a TLS alert, which a rank on the other side prints, and returns the error.
    fn refuse_tls(&mut self) -> io::Error {
        // Bytes left unread would cut the connection before the answer.
        let _ = self.connection.read(&mut [0; 4096]);
        let _ = self.connection.write_all(&TLS_ALERT);
        let what = "a peer speaks TLS and this rank does not: set HEXAGRAM_TLS_* on all ranks, or on none";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    }

    /// Takes the connection and its first message.
    pub(crate) fn into_authenticated(mut self, build: Build) -> Authenticated<C> {
        let message = MessageReader::from(self.received.split_off(GREETING + PROOF + LENGTH));
        Authenticated { connection: self.connection, build, message }
    }
}
