//! Where callers wait until they have proved who they are: in front of the meeting, and of every data port.
//!
//! Anyone can connect to a port. A stranger costs one descriptor and a hundred bytes for at most [`PATIENCE`]; when
//! the hall is full or descriptors run out, the one who has waited longest gives way. Nobody is waited for: those who
//! speak are served whenever they do, so that silent ones delay nobody.
//!
//! ```text
//! caller → callee   greeting
//! callee → caller   greeting proof
//! caller → callee   proof message       message as in `message`: at most FIRST bytes
//! ```

use super::exhausted;
use super::handshake::{Answer, Build, GREETING, MAGIC, PROOF, TLS_ALERT, TLS_HELLO};
use super::message::{Incoming, LENGTH, malformed};
use crate::doorbell::{Doorbell, timespec};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a caller may take from its connection to the end of its first message.
const PATIENCE: Duration = Duration::from_secs(5);
/// Callers who have not yet proved who they are.
const CROWD: usize = 128;
/// Callers let in before those inside have their turn.
const BATCH: usize = CROWD / 2;
/// Longest first message: a rank's card.
const FIRST: usize = 8 << 10;
/// Before accepting again when the process has no descriptors left: nothing announces that some are free.
const PAUSE: Duration = Duration::from_millis(50);

/// A listener. Nothing here blocks, nor do its connections.
pub(crate) trait Accept: AsFd {
    type Connection: Read + Write + AsFd;

    /// The next caller, or `WouldBlock`.
    fn accept(&self) -> io::Result<Self::Connection>;
}

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
}

pub(super) struct Stranger<C> {
    pub(super) connection: C,
    stage: Stage,
    pub(super) words: Vec<u8>,
    /// Length of `words` at which the stage ends.
    needed: usize,
    since: Instant,
}

impl<C: Read + Write> Stranger<C> {
    pub(super) fn new(connection: C) -> Self {
        let (stage, words, needed, since) = (Stage::Magic, Vec::new(), MAGIC.len(), Instant::now());
        Stranger { connection, stage, words, needed, since }
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
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if self.since.elapsed() > PATIENCE => return Err(io::ErrorKind::TimedOut.into()),
                Err(_) => return Ok(None),
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
            Stage::Proof(answer) => (Stage::Length(answer.conclude(key, &self.words[GREETING..])?), LENGTH),
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

    /// Tells whoever speaks TLS here that nobody else does. One that is a rank prints it.
    fn refuse_tls(&mut self) -> io::Error {
        // Bytes left unread would cut the connection before the answer.
        let _ = self.connection.read(&mut [0; 4096]);
        let _ = self.connection.write_all(&TLS_ALERT);
        let what = "a caller speaks TLS and this rank does not: set HEXAGRAM_TLS_* on all ranks, or on none";
        io::Error::new(io::ErrorKind::PermissionDenied, what)
    }

    fn into_caller(mut self, build: Build) -> Caller<C> {
        let message = Incoming::from(self.words.split_off(GREETING + PROOF + LENGTH));
        Caller { connection: self.connection, build, message }
    }
}

pub(super) struct Hall<A: Accept> {
    listener: A,
    key: Vec<u8>,
    strangers: Vec<Stranger<A::Connection>>,
    complaints: Complaints,
    /// When to accept again, after descriptors ran out.
    resume: Option<Instant>,
}

impl<A: Accept> Hall<A> {
    pub(super) fn new(listener: A, key: &[u8]) -> Self {
        let (strangers, complaints) = (Vec::new(), Complaints::default());
        Hall { listener, key: key.to_vec(), strangers, complaints, resume: None }
    }

    /// Waits until somebody calls or speaks, the bell rings or the time is over; returns those who have proved
    /// themselves, if any.
    pub(super) fn wait(
        &mut self,
        at_most: Option<Duration>,
        bell: Option<&Doorbell>,
    ) -> Vec<Caller<A::Connection>> {
        self.sleep(at_most, bell);
        if self.resume.is_none_or(|resume| resume <= Instant::now()) {
            self.resume = None;
            self.let_in();
        }
        let mut proved = Vec::new();
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.listen(&self.key) {
                Ok(Some(build)) => proved.push(stranger.into_caller(build)),
                Ok(None) => self.strangers.push(stranger),
                Err(error) => self.complaints.turned_away(&error),
            }
        }
        proved
    }

    fn sleep(&self, at_most: Option<Duration>, bell: Option<&Doorbell>) {
        let mut sources = Vec::with_capacity(2 + self.strangers.len());
        sources.extend(bell.map(|bell| PollFd::new(bell, PollFlags::IN)));
        if self.resume.is_none() {
            sources.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        sources.extend(self.strangers.iter().map(|s| PollFd::new(&s.connection, PollFlags::IN)));
        let expiry = self.strangers.iter().map(|stranger| stranger.since + PATIENCE).min();
        let until = [expiry, self.resume].into_iter().flatten().min();
        let until = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A millisecond late rather than early, which would turn the last one into a busy loop.
        let until = until.map(|until| until + Duration::from_millis(1));
        let timeout = [until, at_most].into_iter().flatten().min().map(timespec);
        let _ = poll(&mut sources, timeout.as_ref());
    }

    fn let_in(&mut self) {
        for _ in 0..BATCH {
            match self.listener.accept() {
                Ok(connection) => {
                    if self.strangers.len() >= CROWD {
                        self.dismiss();
                    }
                    self.strangers.push(Stranger::new(connection));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if exhausted(&error) => {
                    self.dismiss();
                    let what = format!("{error}; see ulimit -n, or what else this process has open");
                    self.complaints.turned_away(&io::Error::new(error.kind(), what));
                    self.resume = Some(Instant::now() + PAUSE);
                    return;
                }
                Err(error) => self.complaints.turned_away(&error),
            }
        }
    }

    /// Sends away whoever has waited longest: they are kept in the order in which they came.
    fn dismiss(&mut self) {
        if !self.strangers.is_empty() {
            drop(self.strangers.remove(0));
            self.complaints.turned_away(&io::Error::other("too many connections at once"));
        }
    }

    /// Whether callers wait outside because there are no descriptors for them.
    pub(super) fn is_short(&self) -> bool {
        self.resume.is_some()
    }

    /// How the last caller failed who spoke hexagram's language but knew another secret.
    pub(super) fn denied(&self) -> Option<&str> {
        self.complaints.denied.as_deref()
    }
}

/// Says once why callers are turned away, and then how many more were: a port scan must not fill a log.
#[derive(Default)]
struct Complaints {
    /// By kind: how many since the last word, and when that was.
    kinds: HashMap<io::ErrorKind, (usize, Instant)>,
    denied: Option<String>,
}

impl Complaints {
    const INTERVAL: Duration = Duration::from_secs(10);

    fn turned_away(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.denied = Some(error.to_string());
        }
        let now = Instant::now();
        match self.kinds.entry(error.kind()) {
            Entry::Vacant(entry) => {
                tracing::warn!("turned a connection away: {error}");
                entry.insert((0, now));
            }
            Entry::Occupied(mut entry) => {
                let (silent, since) = entry.get_mut();
                *silent += 1;
                if now - *since > Self::INTERVAL {
                    tracing::warn!("turned {silent} more connections away: {error}");
                    (*silent, *since) = (0, now);
                }
            }
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        let silent: usize = self.kinds.values().map(|(silent, _)| silent).sum();
        if silent > 0 {
            tracing::warn!("turned {silent} more connections away");
        }
    }
}
