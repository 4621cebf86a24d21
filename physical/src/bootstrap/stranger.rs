//! One caller, from its connection to the end of its first message. Open this file to see what is read from somebody who
//! has proved nothing yet: never more than the next words of the handshake, and never waiting for them.
//!
//! ```text
//! caller → callee   greeting
//! callee → caller   greeting proof
//! caller → callee   proof message       message as in `message`: at most FIRST bytes; CLAIM bytes if the proof is none
//! ```

use super::handshake::{Answer, Build, GREETING, MAGIC, PROOF, TLS_ALERT, TLS_HELLO};
use super::join::Hello;
use super::message::{Incoming, LENGTH, malformed};
use crate::error::Peer;
use std::io::{self, Read, Write};
use std::time::Instant;

/// Longest message of who could not prove to belong to the job.
const CLAIM: usize = 1 << 10;
/// Longest first message: who calls, and for what.
const FIRST: usize = 8 << 10;

/// Somebody who has proved to belong to the job, and what it said then.
pub(super) struct Caller<C> {
    pub(super) connection: C,
    pub(super) build: Build,
    pub(super) message: Incoming,
}

/// What is known of a stranger, and what is awaited next.
enum Stage {
    Magic,
    Greeting,
    Proof(Answer),
    Length(Build),
    Message(Build),
    /// It has another key. What it says of itself proves nothing, and helps whoever reads it.
    DeniedLength,
    DeniedMessage,
}

/// The steps of the handshake that a caller has taken, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has said nothing.
    Silent,
    /// It has said something.
    Speaking,
    /// It has greeted as a rank does, and was answered.
    Greeted,
    /// It belongs to the job.
    Proved,
}

fn denied(who: &str) -> io::Error {
    let what = format!("{who} has another secret: give all ranks the same HEXAGRAM_SECRET_FILE");
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

pub(super) struct Stranger<C> {
    pub(super) connection: C,
    stage: Stage,
    pub(super) words: Vec<u8>,
    /// Length of `words` at which the stage ends.
    needed: usize,
    /// When it was let in.
    pub(super) since: Instant,
    /// Whether anything has come: inside TLS, not only words.
    pub(super) has_spoken: bool,
}

impl<C: Read + Write> Stranger<C> {
    pub(super) fn new(connection: C) -> Self {
        Stranger {
            connection,
            stage: Stage::Magic,
            words: Vec::new(),
            needed: MAGIC.len(),
            since: Instant::now(),
            has_spoken: false,
        }
    }

    pub(super) fn standing(&self) -> Standing {
        match &self.stage {
            Stage::Magic | Stage::Greeting if self.has_spoken || !self.words.is_empty() => Standing::Speaking,
            Stage::Magic | Stage::Greeting => Standing::Silent,
            Stage::Proof(_) | Stage::DeniedLength | Stage::DeniedMessage => Standing::Greeted,
            Stage::Length(_) | Stage::Message(_) => Standing::Proved,
        }
    }

    /// Reads what has come; the build of one who has said everything.
    pub(super) fn listen(&mut self, key: &[u8]) -> io::Result<Option<Build>> {
        let mut piece = [0; 1024];
        loop {
            // Never beyond the stage: what follows the first message is for somebody else to read.
            let room = (self.needed - self.words.len()).min(piece.len());
            match self.connection.read(&mut piece[..room]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.words.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if self.words.len() == self.needed
                && let Some(build) = self.advance(key)?
            {
                return Ok(Some(build));
            }
        }
    }

    /// Ends a stage; the build of one who has ended the last.
    fn advance(&mut self, key: &[u8]) -> io::Result<Option<Build>> {
        let (stage, more) = match &self.stage {
            Stage::Magic if self.words[0] == TLS_HELLO => return Err(self.refuse_tls()),
            Stage::Magic if self.words != MAGIC => return Err(malformed()),
            Stage::Magic => (Stage::Greeting, GREETING - MAGIC.len()),
            Stage::Greeting => {
                let greeting = self.words[..].try_into().map_err(|_| malformed())?;
                let (answer, words) = Answer::to(greeting, key)?;
                self.connection.write_all(&words)?;
                (Stage::Proof(answer), PROOF)
            }
            Stage::Proof(answer) => match answer.conclude(key, &self.words[GREETING..]) {
                Ok(build) => (Stage::Length(build), LENGTH),
                Err(_) => (Stage::DeniedLength, LENGTH),
            },
            Stage::DeniedLength => match Incoming::length(&self.words[GREETING + PROOF..], CLAIM) {
                Ok(length) if length > 0 => (Stage::DeniedMessage, length),
                _ => return Err(denied("a caller")),
            },
            Stage::DeniedMessage => return Err(self.claim()),
            Stage::Length(build) => {
                let length = Incoming::length(&self.words[GREETING + PROOF..], FIRST)?;
                if length == 0 {
                    return Ok(Some(*build));
                }
                (Stage::Message(*build), length)
            }
            Stage::Message(build) => return Ok(Some(*build)),
        };
        self.stage = stage;
        self.needed += more;
        Ok(None)
    }

    /// The refusal of a caller that has another key, with who it says it is.
    fn claim(&self) -> io::Error {
        let words = self.words[GREETING + PROOF + LENGTH..].to_vec();
        match Hello::read(&mut Incoming::from(words)) {
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

    pub(super) fn into_caller(mut self, build: Build) -> Caller<C> {
        let message = Incoming::from(self.words.split_off(GREETING + PROOF + LENGTH));
        Caller { connection: self.connection, build, message }
    }
}
