//! One caller, from its connection to the end of its first message. Open this file to see what is read from somebody who
//! has proved nothing yet: never more than the next received of the handshake, and never waiting for them.
//!
//! ```text
//! caller → callee   greeting
//! callee → caller   greeting proof
//! caller → callee   proof message       message as in `message`: at most MAX_FIRST_MESSAGE bytes; MAX_CLAIM bytes if the proof is none
//! ```

use super::handshake::{Build, GREETING, MAGIC, PROOF, Responder, TLS_ALERT, TLS_HELLO};
use super::join::Hello;
use super::message::{Incoming, LENGTH, malformed};
use crate::error::Peer;
use crate::runtime::{self, Instant};
use std::io::{self, Read, Write};

/// Longest message of who could not prove to belong to the job.
const MAX_CLAIM: usize = 1 << 10;
/// Longest first message: who calls, and for what.
const MAX_FIRST_MESSAGE: usize = 8 << 10;

/// Somebody who has proved to belong to the job, and what it said then.
pub(super) struct Authenticated<C> {
    pub(super) connection: C,
    pub(super) build: Build,
    pub(super) message: Incoming,
}

/// What is known of a stranger, and what is awaited next.
enum HandshakeStep {
    Magic,
    Greeting,
    Proof(Responder),
    Length(Build),
    Message(Build),
    /// It has another key. What it says of itself proves nothing, and helps whoever reads it.
    DeniedLength,
    DeniedMessage,
}

/// The steps of the handshake that a caller has taken, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has said nothing.
    Silent,
    /// It has said something.
    Sending,
    /// It has greeted as a rank does, and was answered.
    Greeted,
    /// It belongs to the job.
    Proved,
}

fn denied(who: &str) -> io::Error {
    let what = format!("{who} has another secret: give all ranks the same HEXAGRAM_SECRET_FILE");
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

pub(super) struct PendingConnection<C> {
    pub(super) connection: C,
    step: HandshakeStep,
    pub(super) received: Vec<u8>,
    /// Length of `received` at which the step ends.
    needed: usize,
    /// When it was let in.
    pub(super) accepted_at: Instant,
    /// Whether anything has come: inside TLS, not only received.
    pub(super) has_sent: bool,
}

impl<C: Read + Write> PendingConnection<C> {
    pub(super) fn new(connection: C) -> Self {
        PendingConnection {
            connection,
            step: HandshakeStep::Magic,
            received: Vec::new(),
            needed: MAGIC.len(),
            accepted_at: runtime::now(),
            has_sent: false,
        }
    }

    pub(super) fn progress(&self) -> Progress {
        match &self.step {
            HandshakeStep::Magic | HandshakeStep::Greeting if self.has_sent || !self.received.is_empty() => {
                Progress::Sending
            }
            HandshakeStep::Magic | HandshakeStep::Greeting => Progress::Silent,
            HandshakeStep::Proof(_) | HandshakeStep::DeniedLength | HandshakeStep::DeniedMessage => {
                Progress::Greeted
            }
            HandshakeStep::Length(_) | HandshakeStep::Message(_) => Progress::Proved,
        }
    }

    /// Reads what has come; the build of one who has said everything.
    pub(super) fn receive(&mut self, key: &[u8]) -> io::Result<Option<Build>> {
        let mut piece = [0; 1024];
        loop {
            // Never beyond the step: what follows the first message is for somebody else to read.
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

    /// Ends a step; the build of one who has ended the last.
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
                match Incoming::length(&self.received[GREETING + PROOF..], MAX_CLAIM) {
                    Ok(length) if length > 0 => (HandshakeStep::DeniedMessage, length),
                    _ => return Err(denied("a caller")),
                }
            }
            HandshakeStep::DeniedMessage => return Err(self.claim()),
            HandshakeStep::Length(build) => {
                let length = Incoming::length(&self.received[GREETING + PROOF..], MAX_FIRST_MESSAGE)?;
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

    /// The refusal of a caller that has another key, with who it says it is.
    fn claim(&self) -> io::Error {
        let received = self.received[GREETING + PROOF + LENGTH..].to_vec();
        match Hello::read(&mut Incoming::from(received)) {
            Ok(Hello::Rank(peer, _)) => {
                // It may say anything: no name of a host is so long, or has other characters.
                let host: String = peer.host.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
                denied(&Peer { host: host.into(), ..peer }.to_string())
            }
            _ => denied("a caller"),
        }
    }

    /// Tells whoever speaks TLS here that nobody else does. One that is a rank prints it.
    fn refuse_tls(&mut self) -> io::Error {
        // Bytes left unread would cut the connection before the answer.
        let _ = self.connection.read(&mut [0; 4096]);
        let _ = self.connection.write_all(&TLS_ALERT);
        let what = "a caller speaks TLS and this rank does not: set HEXAGRAM_TLS_* on all ranks, or on none";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    }

    pub(super) fn into_authenticated(mut self, build: Build) -> Authenticated<C> {
        let message = Incoming::from(self.received.split_off(GREETING + PROOF + LENGTH));
        Authenticated { connection: self.connection, build, message }
    }
}
