//! MONITOR

use super::super::hosts::Hosts;
use super::super::is_cut_off;
use super::super::parent::Parent;
use super::messages::ControlMessage;
use super::stream::ControlStream;
use super::{Command, CommandQueue};
use crate::health::Health;
use crate::runtime::{self, Instant, PollFd, PollFlags};
use crate::stopwatch::Stopwatch;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long the last messages of a process that leaves may take.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Monitor {
    rank: usize,
    /// On rank 0 by rank; elsewhere only the one to rank 0. None once it has ended.
    streams: Vec<Option<ControlStream>>,
    health: Arc<Health>,
    hosts: Arc<Hosts>,
    commands: mpsc::Receiver<Command>,
    queue: Arc<CommandQueue>,
    /// For how long the streams were awake to, and when this process last gave a sign of life.
    awake: Stopwatch,
    last_heartbeat: Option<Instant>,
    /// Whether the others were has_broadcast_failure of a failure.
    has_broadcast_failure: bool,
    /// The launcher, while it lives.
    pub(super) parent: Option<Parent>,
}

impl Monitor {
    pub(super) fn new(
        rank: usize,
        streams: Vec<Option<ControlStream>>,
        health: Arc<Health>,
        hosts: Arc<Hosts>,
        commands: mpsc::Receiver<Command>,
        queue: Arc<CommandQueue>,
    ) -> Self {
        // Time that this process itself did not have, because it was stopped or starved, is nobody else's silence.
        let awake = Stopwatch::with_gap(2 * health.vigilance().beat);
        Monitor {
            rank,
            streams,
            health,
            hosts,
            commands,
            queue,
            awake,
            last_heartbeat: None,
            has_broadcast_failure: false,
            parent: None,
        }
    }

    pub(super) fn run(mut self) {
        let limit = loop {
            if let Some(limit) = self.run_commands() {
                break limit;
            }
            self.run_once();
        };
        self.leave(limit);
    }

    /// Does what it was has_broadcast_failure; for how long it is to stay, once it was has_broadcast_failure to leave.
    fn run_commands(&mut self) -> Option<Duration> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Report { .. } if self.has_broadcast_failure => {}
                Command::Report { culprit, cause } => self.broadcast_failure(culprit, &cause),
                Command::Located(locality) => self.broadcast(&ControlMessage::Located(locality)),
                Command::Leave { limit } => return Some(limit),
            }
        }
        None
    }

    fn is_hub(&self) -> bool {
        self.rank == 0
    }

    /// One round: sleeps until there is something to hear or to write, a heartbeat is due or a silence has lasted.
    fn run_once(&mut self) {
        let beat = self.health.vigilance().beat;
        let tolerance = self.health.vigilance().tolerance();
        if self.last_heartbeat.is_none_or(|last_heartbeat| last_heartbeat.elapsed() >= beat) {
            self.last_heartbeat = Some(runtime::now());
            self.send_heartbeats();
        }
        let until_beat = self
            .last_heartbeat
            .map_or(Duration::ZERO, |last_heartbeat| beat.saturating_sub(last_heartbeat.elapsed()));
        let silences = self.streams.iter().flatten().map(|stream| stream.silence);
        // Beyond it they are judged already: there is nothing to wake up for.
        let silence = silences.filter(|silence| *silence <= tolerance).max().unwrap_or_default();
        // Just beyond, as a silence that has only just lasted long enough is not yet judged.
        let until_judged = tolerance.saturating_sub(silence).saturating_add(Duration::from_millis(1));
        let ready = self.sleep(until_beat.min(until_judged));
        let awake = self.awake.lap();
        if let Some(end) = self.parent.as_ref().and_then(Parent::end) {
            self.parent = None;
            self.fail(self.rank, &end);
        }
        for (peer, ready) in ready.into_iter().enumerate() {
            self.receive(peer, ready, awake);
        }
    }

    /// Sleeps, and says which streams have something to hear or room to write.
    fn sleep(&self, at_most: Duration) -> Vec<bool> {
        let mut sources = vec![PollFd::new(&self.queue.bell, PollFlags::IN)];
        sources.extend(
            self.parent.iter().filter_map(Parent::source).map(|held| PollFd::new(held, PollFlags::IN)),
        );
        let others = sources.len();
        sources.extend(self.streams.iter().flatten().map(|stream| {
            let room = if stream.is_flushed() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::new(stream, PollFlags::IN | room)
        }));
        // Without streams and without a launcher there is nothing to do before the bell rings.
        let is_idle = sources.len() == 1 && self.parent.is_none();
        let at_most = (!is_idle).then_some(at_most);
        // A signal ends the sleep early, and then nothing is known about the streams.
        let _ = runtime::poll(&mut sources, at_most);
        self.queue.bell.hush();
        let mut ready = sources[others..].iter().map(|source| !source.revents().is_empty());
        self.streams.iter().map(|stream| stream.is_some() && ready.next().unwrap_or_default()).collect()
    }

    /// Gives a sign of life, with what is known about who waits for whom. To a peer that does not read it means nothing.
    fn send_heartbeats(&mut self) {
        let mine = self.health.waits().of(self.rank);
        let answers = if self.is_hub() { self.health.waits().answers() } else { Vec::new() };
        for (peer, stream) in self.streams.iter_mut().enumerate() {
            let Some(stream) = stream.as_mut().filter(|stream| stream.is_flushed()) else { continue };
            if self.rank != 0 {
                stream.send(&ControlMessage::Heartbeat(mine.clone()));
                continue;
            }
            stream.send(&ControlMessage::Heartbeat(Vec::new()));
            let waits = self.health.waits().of(peer);
            let asked = |label| waits.iter().any(|wait| wait.label == label);
            let theirs: Vec<_> = answers.iter().filter(|answer| asked(answer.label)).cloned().collect();
            if !theirs.is_empty() {
                stream.send(&ControlMessage::Stragglers(theirs));
            }
        }
    }

    /// Hears what `peer` has said, and how long it has said nothing.
    fn receive(&mut self, peer: usize, ready: bool, awake: Duration) {
        let size = self.health.peers().len();
        let limit = self.health.vigilance().tolerance();
        let Some(stream) = &mut self.streams[peer] else { return };
        stream.silence += awake;
        // Nobody is called silent without having been awake to just now.
        if !ready && stream.silence <= limit {
            return;
        }
        stream.flush();
        let (messages, end) = stream.receive(size);
        let silence = stream.silence;
        for message in messages {
            self.handle(peer, message);
        }
        if let Some(error) = end {
            self.streams[peer] = None;
            if !self.health.has_left(peer) {
                self.fail(peer, &describe_end(&error));
            }
        } else if silence > limit && !self.health.has_left(peer) {
            let silence = silence.as_secs_f32();
            let cause =
                format!("has been silent for {silence:.1} s (it is stopped, or its host or link is down)");
            self.fail(peer, &cause);
        }
    }

    pub(super) fn handle(&mut self, peer: usize, message: ControlMessage) {
        match message {
            ControlMessage::Heartbeat(waits) => {
                if self.is_hub() {
                    self.health.waits().hear(peer, waits);
                }
            }
            ControlMessage::Located(locality) if self.is_hub() => {
                if let Some(all) = self.hosts.record(peer, locality) {
                    self.broadcast(&ControlMessage::Hosts(all.clone()));
                    self.hosts.settle(all);
                }
            }
            ControlMessage::Located(_) => {}
            // A member hears of the others from the hub only.
            ControlMessage::Hosts(_) if self.is_hub() => {}
            ControlMessage::Hosts(all) => self.hosts.settle(all),
            ControlMessage::Stragglers(answers) => self.health.waits().learn(answers),
            // A member hears of failures from the hub only, which tells everyone by itself.
            ControlMessage::Failure { culprit, cause } if self.is_hub() => self.fail(culprit, &cause),
            ControlMessage::Failure { culprit, cause } => drop(self.health.condemn(culprit, &cause)),
            // Everyone speaks for itself.
            ControlMessage::Left(_) if self.is_hub() => {
                self.announce();
                self.health.leave(peer);
                self.broadcast(&ControlMessage::Left(peer));
            }
            ControlMessage::Left(rank) => self.health.leave(rank),
        }
    }

    /// Tells the others of the first failure, and then this process: it may end as soon as it knows.
    fn fail(&mut self, culprit: usize, cause: &str) {
        if self.health.verdict().is_none() {
            self.broadcast_failure(culprit, cause);
            self.health.condemn(culprit, cause);
        }
    }

    /// Tells of a failure that another thread of this process knows already and has yet to report. Who has left because of
    /// it would otherwise seem to have left for no reason.
    fn announce(&mut self) {
        if !self.has_broadcast_failure
            && let Some(verdict) = self.health.verdict().cloned()
        {
            self.broadcast_failure(verdict.culprit.rank, &verdict.cause);
        }
    }

    /// Tells the others about a failure: the hub everyone, a member the hub.
    fn broadcast_failure(&mut self, culprit: usize, cause: &str) {
        self.has_broadcast_failure = true;
        self.broadcast(&ControlMessage::Failure { culprit, cause: cause.to_owned() });
    }

    fn broadcast(&mut self, message: &ControlMessage) {
        self.streams.iter_mut().flatten().for_each(|stream| stream.send(message));
    }

    fn leave(&mut self, limit: Duration) {
        self.broadcast(&ControlMessage::Left(self.rank));
        let mut stayed = Stopwatch::with_gap(2 * self.health.vigilance().beat);
        let mut warned = false;
        while self.is_needed(stayed.elapsed(), limit) {
            self.run_once();
            // Whoever still has an endpoint may have something to report.
            self.run_commands();
            if stayed.elapsed() > self.health.vigilance().late && !std::mem::replace(&mut warned, true) {
                self.warn();
            }
        }
    }

    /// Whether somebody still has something to learn from this process, which has finished.
    fn is_needed(&self, elapsed: Duration, limit: Duration) -> bool {
        let unsaid = self.streams.iter().flatten().any(|stream| !stream.is_flushed());
        let is_awaited = self.is_hub() && self.unfinished().next().is_some();
        (unsaid && elapsed < FLUSH_TIMEOUT)
            || (is_awaited && self.health.verdict().is_none() && elapsed < limit)
    }

    /// On rank 0, the ranks that have not finished.
    fn unfinished(&self) -> impl Iterator<Item = usize> {
        let there = self.streams.iter().enumerate().filter(|(_, stream)| stream.is_some());
        there.map(|(rank, _)| rank).filter(|rank| !self.health.has_left(*rank))
    }

    fn warn(&self) {
        let there: Vec<String> =
            self.unfinished().map(|rank| self.health.peers()[rank].to_string()).collect();
        if self.is_hub() && !there.is_empty() {
            tracing::warn!("rank 0 has finished and waits for {}, to monitor over them", there.join(", "));
        }
    }
}

/// What the end of a control connection says about the process at its other end.
fn describe_end(error: &io::Error) -> String {
    match error.kind() {
        _ if is_cut_off(error) => "died (its control connection ended)".to_owned(),
        io::ErrorKind::InvalidData => {
            "sent what is not hexagram's language to its control connection".to_owned()
        }
        _ => format!("cannot be reached any more ({error})"),
    }
}
