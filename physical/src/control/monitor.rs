//! The thread that watches the control connections of one process: it sends heartbeats, judges silences, and forwards
//! failures and departures.

use super::health::{Health, HeartbeatOptions};
use super::messages::ControlMessage;
use super::stream::ControlStream;
use super::{CommandQueue, MonitorCommand};
use crate::bootstrap::hosts::WorldHosts;
use crate::bootstrap::is_cut_off;
use crate::bootstrap::parent::Parent;
use crate::runtime::{self, Instant, PollFd, PollFlags};
use crate::waiting::stopwatch::Stopwatch;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longest time to send the last messages of a process that leaves.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// State of the thread.
pub(super) struct Monitor {
    /// This rank.
    rank: usize,
    /// Connections that have not ended: on rank 0 by rank, on members only the one to rank 0.
    streams: Vec<Option<ControlStream>>,
    /// Health of the world, which other threads read.
    health: Arc<Health>,
    /// Hosts of the world, which messages of rank 0 complete.
    hosts: Arc<WorldHosts>,
    /// Commands of other threads.
    commands: mpsc::Receiver<MonitorCommand>,
    /// Sender of those commands, with the bell that signals them.
    queue: Arc<CommandQueue>,
    /// Time for which this process was able to receive.
    awake: Stopwatch,
    /// Instant of the last heartbeat sent.
    last_heartbeat: Option<Instant>,
    /// Set once this process has sent a failure to the others.
    has_broadcast_failure: bool,
    /// Launcher, while it lives.
    pub(super) parent: Option<Parent>,
}

impl Monitor {
    /// Creates the state of a thread that watches `streams`.
    pub(super) fn new(
        rank: usize,
        streams: Vec<Option<ControlStream>>,
        health: Arc<Health>,
        hosts: Arc<WorldHosts>,
        commands: mpsc::Receiver<MonitorCommand>,
        queue: Arc<CommandQueue>,
    ) -> Self {
        // Time in which this process itself was stopped or starved does not count as silence of a peer.
        let awake = Stopwatch::with_gap(2 * health.heartbeat().beat);
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

    /// Runs until this process receives the command to leave, and then until its peers no longer need it.
    pub(super) fn run(mut self) {
        let limit = loop {
            if let Some(limit) = self.run_commands() {
                break limit;
            }
            self.run_once();
        };
        self.leave(limit);
    }

    /// Executes the commands of other threads. Returns the longest time to stay, after the command to leave.
    fn run_commands(&mut self) -> Option<Duration> {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                MonitorCommand::Report { culprit, cause, reported } => {
                    self.fail(culprit, &cause);
                    self.announce();
                    // The reporting thread does not wait for long.
                    let _ = reported.send(());
                }
                MonitorCommand::Located(locality) => self.broadcast(&ControlMessage::Located(locality)),
                MonitorCommand::Leave { limit } => return Some(limit),
            }
        }
        None
    }

    /// Returns true on rank 0.
    fn is_hub(&self) -> bool {
        self.rank == 0
    }

    /// Waits until a connection is ready, a heartbeat is due, or a silence is too long; then serves all connections.
    fn run_once(&mut self) {
        let beat = self.health.heartbeat().beat;
        let tolerance = self.health.heartbeat().tolerance();
        if self.last_heartbeat.is_none_or(|last_heartbeat| last_heartbeat.elapsed() >= beat) {
            self.last_heartbeat = Some(runtime::now());
            self.send_heartbeats();
        }
        let until_beat = self
            .last_heartbeat
            .map_or(Duration::ZERO, |last_heartbeat| beat.saturating_sub(last_heartbeat.elapsed()));
        let silences = self.streams.iter().flatten().map(|stream| stream.silence);
        // A longer silence has been judged already, so that no wake-up is needed.
        let silence = silences.filter(|silence| *silence <= tolerance).max().unwrap_or_default();
        // Slightly longer, since a silence is judged only beyond the tolerance.
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
        self.health.set_doubt(self.misses_heartbeats());
    }

    /// Returns true if a peer has missed more than one heartbeat and has not been judged.
    fn misses_heartbeats(&self) -> bool {
        let missed = 2 * self.health.heartbeat().beat;
        let is_judged = self.health.verdict().is_some();
        let silent = |(peer, stream): (usize, &Option<ControlStream>)| {
            stream.as_ref().is_some_and(|stream| stream.silence > missed) && !self.health.has_left(peer)
        };
        !is_judged && self.streams.iter().enumerate().any(silent)
    }

    /// Waits up to `at_most`. Returns which connections are ready.
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
        // Without streams and without a launcher, only the bell can end the sleep.
        let is_idle = sources.len() == 1 && self.parent.is_none();
        let at_most = (!is_idle).then_some(at_most);
        // A signal ends the sleep early, and then the state of the streams is unknown.
        let _ = runtime::poll(&mut sources, at_most);
        self.queue.bell.clear();
        let mut ready = sources[others..].iter().map(|source| !source.revents().is_empty());
        self.streams.iter().map(|stream| stream.is_some() && ready.next().unwrap_or_default()).collect()
    }

    /// Sends a heartbeat to every peer that reads, with the waits of this rank; rank 0 sends the answers to them.
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

    /// Receives the messages of `peer`. Without one, adds the time `awake` to its silence, and judges it.
    fn receive(&mut self, peer: usize, ready: bool, awake: Duration) {
        let size = self.health.peers().len();
        let limit = self.health.heartbeat().tolerance();
        let Some(stream) = &mut self.streams[peer] else { return };
        stream.silence += awake;
        // A peer is judged only after a check for messages that have just arrived.
        if !ready && stream.silence <= limit {
            return;
        }
        stream.flush();
        let (messages, end) = stream.receive(size);
        let silence = stream.silence;
        for message in messages {
            self.handle(peer, message);
        }
        if end.is_some() {
            self.streams[peer] = None;
        }
        let heartbeat = self.health.heartbeat();
        let cause = match end {
            Some(error) => describe_end(&error, heartbeat),
            None if silence > limit => describe_silence(silence, heartbeat),
            None => return,
        };
        if !self.health.has_left(peer) {
            self.fail(peer, &cause);
        }
    }

    /// Handles a message of `peer`.
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
            // Only rank 0 sends hosts to members.
            ControlMessage::Hosts(_) if self.is_hub() => {}
            ControlMessage::Hosts(all) => self.hosts.settle(all),
            ControlMessage::Stragglers(answers) => self.health.waits().learn(answers),
            // Only rank 0 reports failures to members, and it reports them to all ranks itself.
            ControlMessage::Failure { culprit, cause } if self.is_hub() => self.fail(culprit, &cause),
            ControlMessage::Failure { culprit, cause } => drop(self.health.record_verdict(culprit, &cause)),
            // Only a rank itself announces its departure to rank 0.
            ControlMessage::Left(_) if self.is_hub() => {
                self.announce();
                self.health.leave(peer);
                self.broadcast(&ControlMessage::Left(peer));
            }
            ControlMessage::Left(rank) => self.health.leave(rank),
        }
    }

    /// Reports the first failure to the other ranks, and then to this process, which may end immediately afterwards.
    fn fail(&mut self, culprit: usize, cause: &str) {
        if self.health.verdict().is_none() {
            self.broadcast_failure(culprit, cause);
            self.health.record_verdict(culprit, cause);
        }
    }

    /// Reports a failure that another thread of this process has recorded, but not reported. Otherwise a rank that
    /// left because of it would seem to have left without reason.
    fn announce(&mut self) {
        if !self.has_broadcast_failure
            && let Some(verdict) = self.health.verdict().filter(|verdict| !verdict.is_arrival()).cloned()
        {
            self.broadcast_failure(verdict.culprit.rank, &verdict.cause);
        }
    }

    /// Sends a failure to the other ranks: rank 0 to all, a member to rank 0.
    fn broadcast_failure(&mut self, culprit: usize, cause: &str) {
        self.has_broadcast_failure = true;
        self.broadcast(&ControlMessage::Failure { culprit, cause: cause.to_owned() });
    }

    /// Sends a message over all connections.
    fn broadcast(&mut self, message: &ControlMessage) {
        self.streams.iter_mut().flatten().for_each(|stream| stream.send(message));
    }

    /// Announces the departure of this rank, and continues for up to `limit` while peers need it.
    fn leave(&mut self, limit: Duration) {
        self.broadcast(&ControlMessage::Left(self.rank));
        let mut stayed = Stopwatch::with_gap(2 * self.health.heartbeat().beat);
        let mut warned = false;
        while self.is_needed(stayed.elapsed(), limit) {
            self.run_once();
            // A thread that still has an endpoint may report a failure.
            self.run_commands();
            if stayed.elapsed() > self.health.heartbeat().late && !std::mem::replace(&mut warned, true) {
                self.warn();
            }
        }
    }

    /// Returns true while messages are unsent, or, on rank 0, other ranks have not left.
    fn is_needed(&self, elapsed: Duration, limit: Duration) -> bool {
        let unsaid = self.streams.iter().flatten().any(|stream| !stream.is_flushed());
        let is_awaited = self.is_hub() && self.unfinished().next().is_some();
        (unsaid && elapsed < FLUSH_TIMEOUT)
            || (is_awaited && self.health.verdict().is_none() && elapsed < limit)
    }

    /// Returns the ranks that have not left, on rank 0.
    fn unfinished(&self) -> impl Iterator<Item = usize> {
        let there = self.streams.iter().enumerate().filter(|(_, stream)| stream.is_some());
        there.map(|(rank, _)| rank).filter(|rank| !self.health.has_left(*rank))
    }

    /// Warns that rank 0 has finished and waits for other ranks.
    fn warn(&self) {
        let there: Vec<String> =
            self.unfinished().map(|rank| self.health.peers()[rank].to_string()).collect();
        if self.is_hub() && !there.is_empty() {
            tracing::warn!("rank 0 has finished, and continues to monitor {}", there.join(", "));
        }
    }
}

/// Returns the cause of the failure of a peer that has been silent.
fn describe_silence(silence: Duration, heartbeat: &HeartbeatOptions) -> String {
    let (silence, allowed) = (silence.as_secs_f32(), heartbeat.silence.as_secs_f32());
    format!(
        "has been silent for {silence:.1} s (it is stopped, or its host or link is down; HEXAGRAM_SILENCE is {allowed})"
    )
}

/// Returns the cause of the failure of a peer, from the error that ended its connection.
fn describe_end(error: &io::Error, heartbeat: &HeartbeatOptions) -> String {
    use io::ErrorKind::{HostUnreachable, InvalidData, NetworkUnreachable, TimedOut};
    match error.kind() {
        _ if is_cut_off(error) => "died (its control connection ended)".to_owned(),
        InvalidData => "broke the protocol of its control connection".to_owned(),
        // The system is first if this process was paused, or if only the direction to the peer is cut.
        TimedOut | HostUnreachable | NetworkUnreachable => format!(
            "has been silent, or has acknowledged nothing, for {:.1} s ({error}: its host or link is down; \
             HEXAGRAM_SILENCE is {})",
            heartbeat.system_tolerance().as_secs_f32(),
            heartbeat.silence.as_secs_f32()
        ),
        _ => format!("is no longer reachable ({error})"),
    }
}
