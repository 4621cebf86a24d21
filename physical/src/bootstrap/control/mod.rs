//! The control connections: a star around rank 0 that stays open, so that everyone learns who left, who failed and who
//! is late. Open this to see how a failure of one process becomes an error of all.
//!
//! One thread in each process watches them, and does nothing else: however long the others compute, it answers.
//!
//! - A stream that ends before its rank has said that it leaves is a rank that died. The kernel ends it within
//!   milliseconds of a process's death, whatever its threads were doing.
//! - A stream on which no heartbeat comes is a rank that is stopped or cut off. Rank 0 judges the members, each member
//!   judges rank 0: after a cut no side goes on.
//! - A launcher that has ended, killed perhaps, ends its ranks.
//! - Heartbeats carry what each rank's operations wait for to rank 0, which answers who is late.
//! - Rank 0 is the hub until all others have left. It waits for them when it has finished, for a limited time; without a
//!   hub nobody watches the others any more, only their deadlines do.
//!
//! `word` has the grammar, `line` one connection.

mod line;
mod word;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use word::fuzz as fuzz_word;

use super::hosts::{Finding, Hosts};
use super::is_cut_off;
use super::join::Seats;
use super::parent::Parent;
use crate::doorbell::{Doorbell, timespec};
use crate::error::{Error, Result};
use crate::health::{Health, Reporter};
use crate::stopwatch::Stopwatch;
use crate::transport::Bell;
use line::Line;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use word::Word;

/// How long the last words of a process that leaves may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

enum Command {
    Report { culprit: usize, cause: String },
    Found(Finding),
    Leave { patience: Duration },
}

/// This process's part in the star: a thread that watches, and a way to tell it something.
pub(crate) struct Control {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
}

/// Where the watching thread finds its orders.
struct Desk {
    commands: mpsc::Sender<Command>,
    bell: Doorbell,
}

impl Desk {
    fn tell(&self, command: Command) {
        // A watcher that has ended has nobody left to tell.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

impl Reporter for Desk {
    fn report(&self, culprit: usize, cause: &str) {
        self.tell(Command::Report { culprit, cause: cause.to_owned() });
    }
}

impl Control {
    /// Starts watching over the streams that remained after the meeting.
    pub(crate) fn start(
        rank: usize,
        seats: Seats,
        health: &Arc<Health>,
        hosts: &Arc<Hosts>,
        parent: Option<Parent>,
    ) -> Result<Self> {
        let streams = match seats {
            Seats::Hub(streams) => streams,
            Seats::Member(stream) => vec![Some(stream)],
        };
        let vigilance = health.vigilance();
        let line = |stream: Option<_>| stream.map(|stream| Line::new(stream, vigilance)).transpose();
        let mut lines = streams.into_iter().map(line).collect::<Result<Vec<_>>>()?;
        let (hand_over, watch) = mpsc::channel();
        let (desk, commands, thread) = Self::prepare(watch).inspect_err(|error| {
            let failure = Word::Failure { culprit: rank, cause: format!("gave up as it joined: {error}") };
            lines.iter_mut().flatten().for_each(|line| line.say(&failure));
        })?;
        health.set_reporter(Arc::clone(&desk) as Arc<dyn Reporter>);
        let watch =
            Watch::new(rank, lines, Arc::clone(health), Arc::clone(hosts), commands, Arc::clone(&desk));
        let watch = Watch { parent, ..watch };
        // The thread ends only when it is told to, by what is returned here.
        let _ = hand_over.send(watch);
        Ok(Control { desk, thread: Some(thread), patience: Duration::ZERO })
    }

    /// Takes from the system what watching needs: a thread, which waits for its work, and a way to wake it.
    fn prepare(watch: mpsc::Receiver<Watch>) -> Result<(Arc<Desk>, mpsc::Receiver<Command>, JoinHandle<()>)> {
        let (sender, commands) = mpsc::channel();
        let desk = Arc::new(Desk { commands: sender, bell: Doorbell::new()? });
        let thread = std::thread::Builder::new().name("hexagram-control".to_owned());
        let run = move || watch.recv().map_or((), Watch::run);
        Ok((desk, commands, thread.spawn(run).map_err(Error::no_thread)?))
    }

    /// Tells rank 0 where this rank found itself to be.
    pub(crate) fn found(&self, finding: Finding) {
        self.desk.tell(Command::Found(finding));
    }

    /// Says goodbye. Rank 0 stays until all others have left, but not for longer than `patience`.
    pub(crate) fn leave(mut self, patience: Duration) {
        self.patience = patience;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.desk.tell(Command::Leave { patience: self.patience });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watch {
    rank: usize,
    /// On rank 0 by rank; elsewhere only the one to rank 0. None once it has ended.
    lines: Vec<Option<Line>>,
    health: Arc<Health>,
    hosts: Arc<Hosts>,
    commands: mpsc::Receiver<Command>,
    desk: Arc<Desk>,
    /// For how long the lines were listened to, and when this process last gave a sign of life.
    listened: Stopwatch,
    beaten: Option<Instant>,
    /// Whether the others were told of a failure.
    told: bool,
    /// The launcher, while it lives.
    parent: Option<Parent>,
}

impl Watch {
    fn new(
        rank: usize,
        lines: Vec<Option<Line>>,
        health: Arc<Health>,
        hosts: Arc<Hosts>,
        commands: mpsc::Receiver<Command>,
        desk: Arc<Desk>,
    ) -> Self {
        // Time that this process itself did not have, because it was stopped or starved, is nobody else's silence.
        let listened = Stopwatch::with_gap(2 * health.vigilance().beat);
        Watch {
            rank,
            lines,
            health,
            hosts,
            commands,
            desk,
            listened,
            beaten: None,
            told: false,
            parent: None,
        }
    }

    fn run(mut self) {
        let patience = loop {
            if let Some(patience) = self.obey() {
                break patience;
            }
            self.attend();
        };
        self.leave(patience);
    }

    /// Does what it was told; for how long it is to stay, once it was told to leave.
    fn obey(&mut self) -> Option<Duration> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Report { .. } if self.told => {}
                Command::Report { culprit, cause } => self.pass_on(culprit, &cause),
                Command::Found(finding) => self.broadcast(&Word::Found(finding)),
                Command::Leave { patience } => return Some(patience),
            }
        }
        None
    }

    fn is_hub(&self) -> bool {
        self.rank == 0
    }

    /// One round: sleeps until there is something to hear or to write, a heartbeat is due or a silence has lasted.
    fn attend(&mut self) {
        let beat = self.health.vigilance().beat;
        let tolerance = self.health.vigilance().tolerance();
        if self.beaten.is_none_or(|beaten| beaten.elapsed() >= beat) {
            self.beaten = Some(Instant::now());
            self.beat();
        }
        let until_beat = self.beaten.map_or(Duration::ZERO, |beaten| beat.saturating_sub(beaten.elapsed()));
        let silences = self.lines.iter().flatten().map(|line| line.silence);
        // Beyond it they are judged already: there is nothing to wake up for.
        let silence = silences.filter(|silence| *silence <= tolerance).max().unwrap_or_default();
        // Just beyond, as a silence that has only just lasted long enough is not yet judged.
        let until_judged = tolerance.saturating_sub(silence).saturating_add(Duration::from_millis(1));
        let ready = self.sleep(until_beat.min(until_judged));
        let awake = self.listened.lap();
        if let Some(end) = self.parent.as_ref().and_then(Parent::end) {
            self.parent = None;
            self.fail(self.rank, &end);
        }
        for (peer, ready) in ready.into_iter().enumerate() {
            self.hear(peer, ready, awake);
        }
    }

    /// Sleeps, and says which lines have something to hear or room to write.
    fn sleep(&self, at_most: Duration) -> Vec<bool> {
        let mut sources = vec![PollFd::new(&self.desk.bell, PollFlags::IN)];
        sources.extend(
            self.parent.iter().filter_map(Parent::source).map(|held| PollFd::new(held, PollFlags::IN)),
        );
        let others = sources.len();
        sources.extend(self.lines.iter().flatten().map(|line| {
            let room = if line.is_flushed() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(line, PollFlags::IN | room)
        }));
        // Without lines and without a launcher there is nothing to do before the bell rings.
        let is_idle = sources.len() == 1 && self.parent.is_none();
        let at_most = (!is_idle).then(|| timespec(at_most));
        // A signal ends the sleep early, and then nothing is known about the lines.
        let _ = poll(&mut sources, at_most.as_ref());
        self.desk.bell.hush();
        let mut ready = sources[others..].iter().map(|source| !source.revents().is_empty());
        self.lines.iter().map(|line| line.is_some() && ready.next().unwrap_or_default()).collect()
    }

    /// Gives a sign of life, with what is known about who waits for whom. To a peer that does not read it means nothing.
    fn beat(&mut self) {
        let mine = self.health.waits().of(self.rank);
        let answers = if self.is_hub() { self.health.waits().answers() } else { Vec::new() };
        for (peer, line) in self.lines.iter_mut().enumerate() {
            let Some(line) = line.as_mut().filter(|line| line.is_flushed()) else { continue };
            if self.rank != 0 {
                line.say(&Word::Beat(mine.clone()));
                continue;
            }
            line.say(&Word::Beat(Vec::new()));
            let waits = self.health.waits().of(peer);
            let asked = |label| waits.iter().any(|wait| wait.label == label);
            let theirs: Vec<_> = answers.iter().filter(|answer| asked(answer.label)).cloned().collect();
            if !theirs.is_empty() {
                line.say(&Word::Told(theirs));
            }
        }
    }

    /// Hears what `peer` has said, and how long it has said nothing.
    fn hear(&mut self, peer: usize, ready: bool, awake: Duration) {
        let size = self.health.peers().len();
        let patience = self.health.vigilance().tolerance();
        let Some(line) = &mut self.lines[peer] else { return };
        line.silence += awake;
        // Nobody is called silent without having been listened to just now.
        if !ready && line.silence <= patience {
            return;
        }
        line.flush();
        let (words, end) = line.listen(size);
        let silence = line.silence;
        for word in words {
            self.heed(peer, word);
        }
        if let Some(error) = end {
            self.lines[peer] = None;
            if !self.health.has_left(peer) {
                self.fail(peer, &ended(&error));
            }
        } else if silence > patience && !self.health.has_left(peer) {
            let silence = silence.as_secs_f32();
            let cause =
                format!("has been silent for {silence:.1} s (it is stopped, or its host or link is down)");
            self.fail(peer, &cause);
        }
    }

    fn heed(&mut self, peer: usize, word: Word) {
        match word {
            Word::Beat(waits) => {
                if self.is_hub() {
                    self.health.waits().hear(peer, waits);
                }
            }
            Word::Found(finding) if self.is_hub() => {
                if let Some(all) = self.hosts.hear(peer, finding) {
                    self.broadcast(&Word::Hosts(all.clone()));
                    self.hosts.settle(all);
                }
            }
            Word::Found(_) => {}
            // A member hears of the others from the hub only.
            Word::Hosts(_) if self.is_hub() => {}
            Word::Hosts(all) => self.hosts.settle(all),
            Word::Told(answers) => self.health.waits().learn(answers),
            // A member hears of failures from the hub only, which tells everyone by itself.
            Word::Failure { culprit, cause } if self.is_hub() => self.fail(culprit, &cause),
            Word::Failure { culprit, cause } => drop(self.health.condemn(culprit, &cause)),
            // Everyone speaks for itself.
            Word::Left(_) if self.is_hub() => {
                self.announce();
                self.health.leave(peer);
                self.broadcast(&Word::Left(peer));
            }
            Word::Left(rank) => self.health.leave(rank),
        }
    }

    /// Tells the others of the first failure, and then this process: it may end as soon as it knows.
    fn fail(&mut self, culprit: usize, cause: &str) {
        if self.health.verdict().is_none() {
            self.pass_on(culprit, cause);
            self.health.condemn(culprit, cause);
        }
    }

    /// Tells of a failure that another thread of this process knows already and has yet to report. Who has left because of
    /// it would otherwise seem to have left for no reason.
    fn announce(&mut self) {
        if !self.told
            && let Some(verdict) = self.health.verdict().cloned()
        {
            self.pass_on(verdict.culprit.rank, &verdict.cause);
        }
    }

    /// Tells the others about a failure: the hub everyone, a member the hub.
    fn pass_on(&mut self, culprit: usize, cause: &str) {
        self.told = true;
        self.broadcast(&Word::Failure { culprit, cause: cause.to_owned() });
    }

    fn broadcast(&mut self, word: &Word) {
        self.lines.iter_mut().flatten().for_each(|line| line.say(word));
    }

    fn leave(&mut self, patience: Duration) {
        self.broadcast(&Word::Left(self.rank));
        let mut stayed = Stopwatch::with_gap(2 * self.health.vigilance().beat);
        let mut warned = false;
        while self.is_needed(stayed.elapsed(), patience) {
            self.attend();
            // Whoever still has an endpoint may have something to report.
            self.obey();
            if stayed.elapsed() > self.health.vigilance().late && !std::mem::replace(&mut warned, true) {
                self.warn();
            }
        }
    }

    /// Whether somebody still has something to learn from this process, which has finished.
    fn is_needed(&self, elapsed: Duration, patience: Duration) -> bool {
        let unsaid = self.lines.iter().flatten().any(|line| !line.is_flushed());
        let unwatched = self.is_hub() && self.watched().next().is_some();
        (unsaid && elapsed < LAST_WORDS)
            || (unwatched && self.health.verdict().is_none() && elapsed < patience)
    }

    /// On rank 0, the ranks that have not finished.
    fn watched(&self) -> impl Iterator<Item = usize> {
        let there = self.lines.iter().enumerate().filter(|(_, line)| line.is_some());
        there.map(|(rank, _)| rank).filter(|rank| !self.health.has_left(*rank))
    }

    fn warn(&self) {
        let there: Vec<String> = self.watched().map(|rank| self.health.peers()[rank].to_string()).collect();
        if self.is_hub() && !there.is_empty() {
            tracing::warn!("rank 0 has finished and waits for {}, to watch over them", there.join(", "));
        }
    }
}

/// What the end of a control connection says about the process at its other end.
fn ended(error: &io::Error) -> String {
    match error.kind() {
        _ if is_cut_off(error) => "died (its control connection ended)".to_owned(),
        io::ErrorKind::InvalidData => {
            "sent what is not hexagram's language to its control connection".to_owned()
        }
        _ => format!("cannot be reached any more ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::meeting::Stream;
    use crate::error::Peer;
    use crate::health::Vigilance;
    use std::os::unix::net::UnixStream;

    /// Rank 0's thread that computes knows of a failure before the one that watches has its report; a member that heard of
    /// the same failure otherwise leaves at that moment.
    #[test]
    fn others_hear_of_a_failure_before_they_hear_who_left_because_of_it() {
        let line = |stream| Line::new(Stream::Local(stream), &Vigilance::default()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut member = line(theirs);
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let health = Arc::new(Health::new(0, (0..3).map(peer).collect()));
        let (sender, commands) = mpsc::channel();
        let desk = Arc::new(Desk { commands: sender, bell: Doorbell::new().unwrap() });
        let lines = vec![None, None, Some(line(ours))];
        let mut watch =
            Watch::new(0, lines, Arc::clone(&health), Arc::new(Hosts::new(0, &[])), commands, desk);
        assert!(health.condemn(0, "gave up"));
        watch.heed(1, Word::Left(1));
        let (words, end) = member.listen(3);
        let failure = Word::Failure { culprit: 0, cause: "gave up".to_owned() };
        assert!(end.is_none() && words == [failure, Word::Left(1)], "{words:?}");
    }
}
