//! Control connections: a star around rank 0 that stays open after the rendezvous. It notifies every rank of the
//! ranks that have left, failed or are late.
//!
//! One thread in each process, the [`Monitor`], only watches them, so that it answers however long the other threads
//! compute.
//!
//! - If a connection ends before its rank has announced its departure, the rank has died. The kernel closes it within
//!   milliseconds of the death of the process.
//! - If no heartbeat arrives, the rank is stopped or disconnected. Rank 0 judges the members, and each member judges
//!   rank 0, so that both sides end after a network partition.
//! - If the launcher ends, its ranks end.
//! - Heartbeats carry the waits of each rank's operations to rank 0, which answers with the ranks that are late.
//! - Rank 0 stays until all others have left, for a limited time. Without it, they are not monitored, and only their
//!   deadlines remain.
//!
//! `messages` has the grammar, `stream` one connection, `monitor` the thread.

pub mod health;
mod messages;
mod monitor;
mod stream;
pub(crate) mod wait_graph;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use messages::fuzz as fuzz_message;
#[cfg(test)]
pub(crate) use messages::tests::seeds;

#[cfg(feature = "sim")]
pub(crate) use messages::is_heartbeat;

use crate::bootstrap::hosts::{Locality, WorldHosts};
use crate::bootstrap::meeting::rendezvous_member::ControlStreams;
use crate::bootstrap::parent::Parent;
use crate::error::Result;
use crate::runtime::{self, Thread};
use crate::transport::Bell;
use crate::waiting::doorbell::Doorbell;
use health::{Health, Reporter};
use messages::ControlMessage;
use monitor::Monitor;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use stream::ControlStream;

/// Longest wait of a thread for the [`Monitor`] to report a failure.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Command of another thread to the [`Monitor`].
enum MonitorCommand {
    /// Report a failure to the other ranks, and then confirm it.
    Report { culprit: usize, cause: String, reported: mpsc::Sender<()> },
    /// Send the result of the probes of this rank to rank 0.
    Located(Locality),
    /// Leave, within this time.
    Leave { limit: Duration },
}

/// Handle of the thread that watches the control connections of this process.
pub(crate) struct Control {
    /// Commands to the thread.
    queue: Arc<CommandQueue>,
    /// Record of failures, which the thread reports.
    health: Arc<Health>,
    /// The thread, until it is joined.
    thread: Option<Thread>,
    /// Longest time that rank 0 waits for the others when it leaves.
    limit: Duration,
}

/// Sender of commands to the thread.
struct CommandQueue {
    /// The commands.
    commands: mpsc::Sender<MonitorCommand>,
    /// Bell that wakes the thread.
    bell: Doorbell,
}

impl CommandQueue {
    /// Sends a command, and wakes the thread.
    fn tell(&self, command: MonitorCommand) {
        // A thread that has ended has no peers left.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

impl Reporter for CommandQueue {
    /// Returns once the failure has been sent, since this process may end immediately afterwards. A simulated process
    /// does not end before its threads do.
    fn report(&self, culprit: usize, cause: &str) {
        let (reported, done) = mpsc::channel();
        self.tell(MonitorCommand::Report { culprit, cause: cause.to_owned(), reported });
        if !runtime::is_replaced() {
            let _ = runtime::receive_within(&done, REPORT_TIMEOUT);
        }
    }
}

impl Control {
    /// Starts to watch the connections that remained after the rendezvous.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the system provides no descriptor or no thread. The other ranks are
    /// notified.
    pub(crate) fn start(
        rank: usize,
        streams: ControlStreams,
        health: &Arc<Health>,
        hosts: &Arc<WorldHosts>,
        parent: Option<Parent>,
    ) -> Result<Self> {
        let streams = match streams {
            ControlStreams::Leader(streams) => streams,
            ControlStreams::Member(stream) => vec![Some(stream)],
        };
        let heartbeat = health.heartbeat();
        let stream =
            |stream: Option<_>| stream.map(|stream| ControlStream::new(stream, heartbeat)).transpose();
        let mut streams = streams.into_iter().map(stream).collect::<Result<Vec<_>>>()?;
        let (hand_over, monitor) = mpsc::channel();
        let (queue, commands, thread) = Self::prepare(monitor).inspect_err(|error| {
            let failure =
                ControlMessage::Failure { culprit: rank, cause: format!("gave up while joining: {error}") };
            streams.iter_mut().flatten().for_each(|stream| stream.send(&failure));
        })?;
        health.set_reporter(Arc::clone(&queue) as Arc<dyn Reporter>);
        let mut monitor =
            Monitor::new(rank, streams, Arc::clone(health), Arc::clone(hosts), commands, Arc::clone(&queue));
        monitor.parent = parent;
        // The thread ends only by a command of the handle returned here.
        let _ = hand_over.send(monitor);
        Ok(Control { queue, health: Arc::clone(health), thread: Some(thread), limit: Duration::ZERO })
    }

    /// Creates the thread, which waits for its state, and its command queue.
    fn prepare(
        monitor: mpsc::Receiver<Monitor>,
    ) -> Result<(Arc<CommandQueue>, mpsc::Receiver<MonitorCommand>, Thread)> {
        let (sender, commands) = mpsc::channel();
        let queue = Arc::new(CommandQueue { commands: sender, bell: Doorbell::new()? });
        let run = move || runtime::receive(&monitor).map_or((), Monitor::run);
        Ok((queue, commands, runtime::spawn("hexagram-control", run)?))
    }

    /// Sends the result of the probes of this rank to rank 0.
    pub(crate) fn report_locality(&self, locality: Locality) {
        self.queue.tell(MonitorCommand::Located(locality));
    }

    /// Announces the departure of this rank. Rank 0 stays until all others have left, but not for longer than `limit`.
    pub(crate) fn leave(mut self, limit: Duration) {
        self.limit = limit;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A complete world has announced its departure before.
            self.health.fail_self("panicked while joining");
        }
        self.queue.tell(MonitorCommand::Leave { limit: self.limit });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::health::HeartbeatOptions;
    use super::*;
    use crate::bootstrap::sockets::stream::RankStream;
    use crate::error::Peer;
    use std::os::unix::net::UnixStream;

    /// Time for a departure that a failure causes to arrive before the report of that failure: the computing thread of rank 0
    /// detects the failure first.
    #[test]
    fn others_hear_of_a_failure_before_they_hear_who_left_because_of_it() {
        let stream =
            |stream| ControlStream::new(RankStream::Local(stream), &HeartbeatOptions::default()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut member = stream(theirs);
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let health = Arc::new(Health::new(0, (0..3).map(peer).collect()));
        let (sender, commands) = mpsc::channel();
        let queue = Arc::new(CommandQueue { commands: sender, bell: Doorbell::new().unwrap() });
        let streams = vec![None, None, Some(stream(ours))];
        let mut monitor =
            Monitor::new(0, streams, Arc::clone(&health), Arc::new(WorldHosts::new(0, &[])), commands, queue);
        assert!(health.record_verdict(0, "gave up"));
        monitor.handle(1, ControlMessage::Left(1));
        let (messages, end) = member.receive(3);
        let failure = ControlMessage::Failure { culprit: 0, cause: "gave up".to_owned() };
        assert!(end.is_none() && messages == [failure, ControlMessage::Left(1)], "{messages:?}");
    }
}
