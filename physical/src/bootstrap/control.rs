//! The control connections: a star around rank 0 that stays open, so that everyone learns who left and who failed.
//!
//! ```text
//! member → rank 0   (REPORT culprit:u32 cause:text)*  GOODBYE?  end of stream
//! rank 0 → member   (VERDICT culprit:u32 cause:text | LEFT rank:u32)*  end of stream
//! ```
//!
//! A stream that ends without a goodbye is a rank that died. The kernel ends it within milliseconds of a process's death,
//! whatever its threads were doing. Rank 0 stays for a second after it has finished, or until all others have; then nobody
//! watches them any more: deadlines still hold.

use super::join::Seats;
use super::meeting::Stream;
use super::message::{Incoming, Outgoing};
use crate::doorbell::{Doorbell, timespec};
use crate::error::{Error, Result};
use crate::health::{Health, Reporter};
use crate::transport::Bell;
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const REPORT: usize = 0;
const GOODBYE: usize = 1;
const VERDICT: usize = 2;
const LEFT: usize = 3;

/// How long rank 0, when it has finished, still carries messages between the others.
const LINGER: Duration = Duration::from_secs(1);
/// How long one control message may take to write or to arrive whole.
const PATIENCE: Duration = Duration::from_secs(2);

enum Command {
    Report { culprit: usize, cause: String },
    Leave,
}

/// This process's part in the star: a thread that watches, and a way to tell it something.
pub(crate) struct Control {
    line: Arc<Line>,
    thread: Option<JoinHandle<()>>,
}

struct Line {
    commands: mpsc::Sender<Command>,
    bell: Doorbell,
}

impl Line {
    fn tell(&self, command: Command) {
        // A watcher that has ended has nobody left to tell.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

impl Reporter for Line {
    fn report(&self, culprit: usize, cause: &str) {
        self.tell(Command::Report { culprit, cause: cause.to_owned() });
    }
}

impl Control {
    /// Starts watching over the streams that remained after the meeting.
    pub(crate) fn start(rank: usize, seats: Seats, health: &Arc<Health>) -> Result<Self> {
        let (sender, commands) = mpsc::channel();
        let line = Arc::new(Line { commands: sender, bell: Doorbell::new()? });
        health.set_reporter(Arc::clone(&line) as Arc<dyn Reporter>);
        let streams = match seats {
            Seats::Hub(streams) => streams,
            Seats::Member(stream) => vec![Some(stream)],
        };
        for stream in streams.iter().flatten() {
            stream.set_patience(PATIENCE).map_err(|cause| {
                Error::system("set a time limit on a control connection", cause, "report this as a bug")
            })?;
        }
        let (health, their_line) = (Arc::clone(health), Arc::clone(&line));
        let watch = Watch { rank, streams, health, commands, line: their_line };
        let thread = std::thread::Builder::new().name("hexagram-control".to_owned());
        let thread = thread
            .spawn(move || watch.run())
            .map_err(|cause| Error::system("start a thread", cause, "raise ulimit -u"))?;
        Ok(Control { line, thread: Some(thread) })
    }
}

impl Drop for Control {
    /// Says goodbye.
    fn drop(&mut self) {
        self.line.tell(Command::Leave);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watch {
    rank: usize,
    /// On rank 0 by rank; elsewhere only the one to rank 0.
    streams: Vec<Option<Stream>>,
    health: Arc<Health>,
    commands: mpsc::Receiver<Command>,
    line: Arc<Line>,
}

impl Watch {
    fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                match command {
                    Command::Report { culprit, cause } => self.pass_on(culprit, &cause),
                    Command::Leave => return self.leave(),
                }
            }
            self.attend(None);
        }
    }

    /// Waits, at most so long, and reads what has come.
    fn attend(&mut self, at_most: Option<Duration>) {
        for peer in self.wait(at_most) {
            self.hear(peer);
        }
    }

    fn is_hub(&self) -> bool {
        self.rank == 0
    }

    /// Sleeps until streams have something to read, and says which.
    fn wait(&self, at_most: Option<Duration>) -> Vec<usize> {
        let open = || self.streams.iter().enumerate().filter_map(|(at, s)| Some((at, s.as_ref()?)));
        let mut sources = vec![PollFd::new(&self.line.bell, PollFlags::IN)];
        sources.extend(open().map(|(_, stream)| PollFd::new(stream, PollFlags::IN)));
        let timeout = at_most.map(timespec);
        let _ = poll(&mut sources, timeout.as_ref());
        self.line.bell.hush();
        let ready = open().zip(&sources[1..]).filter(|(_, source)| !source.revents().is_empty());
        ready.map(|((peer, _), _)| peer).collect()
    }

    /// Reads one message; a stream that ends has said its last word.
    fn hear(&mut self, peer: usize) {
        let Some(stream) = &mut self.streams[peer] else { return };
        let message = Incoming::receive(stream).and_then(|mut message| {
            let kind = message.number()?;
            let rank = if kind == GOODBYE { peer } else { message.number()? };
            let cause = if matches!(kind, REPORT | VERDICT) { message.text()? } else { String::new() };
            if rank >= self.health.peers().len() {
                return Err(super::message::malformed());
            }
            Ok((kind, rank, cause))
        });
        match message {
            Ok((REPORT | VERDICT, culprit, cause)) => {
                // Only what is news, and only from the hub, or two sides would tell each other for ever.
                if self.health.condemn(culprit, &cause) && self.is_hub() {
                    self.pass_on(culprit, &cause);
                }
            }
            Ok((GOODBYE | LEFT, rank, _)) => {
                self.health.leave(rank);
                self.broadcast(&Outgoing::default().number(LEFT).number(rank));
            }
            Ok(_) | Err(_) => {
                self.streams[peer] = None;
                let cause = "died (its control connection ended)";
                if !self.health.has_left(peer) && self.health.condemn(peer, cause) {
                    self.pass_on(peer, cause);
                }
            }
        }
    }

    /// Tells the others about a failure: the hub everyone, a member the hub.
    fn pass_on(&mut self, culprit: usize, cause: &str) {
        let kind = if self.is_hub() { VERDICT } else { REPORT };
        let message = Outgoing::default().number(kind).number(culprit).text(cause);
        if self.is_hub() {
            self.broadcast(&message);
        } else if let Some(hub) = &mut self.streams[0] {
            let _ = message.send(hub);
        }
    }

    fn broadcast(&mut self, message: &Outgoing) {
        if self.is_hub() {
            // A member that cannot be told is dead, and its stream says so.
            self.streams.iter_mut().flatten().for_each(|stream| drop(message.send(stream)));
        }
    }

    fn leave(&mut self) {
        if self.is_hub() {
            self.broadcast(&Outgoing::default().number(LEFT).number(0));
            let until = Instant::now() + LINGER;
            while self.streams.iter().any(Option::is_some) && Instant::now() < until {
                self.attend(Some(until.saturating_duration_since(Instant::now())));
            }
        } else if let Some(hub) = &mut self.streams[0] {
            let _ = Outgoing::default().number(GOODBYE).send(hub);
        }
    }
}
