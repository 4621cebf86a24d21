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
//! `message` has the grammar, `stream` one connection.

mod messages;
mod monitor;
mod stream;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use messages::fuzz as fuzz_message;

use super::hosts::{Hosts, Locality};
use super::join::ControlStreams;
use super::parent::Parent;
use crate::doorbell::Doorbell;
use crate::error::Result;
use crate::health::{Health, Reporter};
use crate::runtime::{self, Thread};
use crate::transport::Bell;
use messages::ControlMessage;
use monitor::Monitor;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use stream::ControlStream;

enum Command {
    Report { culprit: usize, cause: String },
    Located(Locality),
    Leave { limit: Duration },
}

/// This process's part in the star: a thread that watches, and a way to tell it something.
pub(crate) struct Control {
    queue: Arc<CommandQueue>,
    thread: Option<Thread>,
    limit: Duration,
}

/// Where the watching thread finds its orders.
struct CommandQueue {
    commands: mpsc::Sender<Command>,
    bell: Doorbell,
}

impl CommandQueue {
    fn tell(&self, command: Command) {
        // A watcher that has ended has nobody left to tell.
        let _ = self.commands.send(command);
        self.bell.ring();
    }
}

impl Reporter for CommandQueue {
    fn report(&self, culprit: usize, cause: &str) {
        self.tell(Command::Report { culprit, cause: cause.to_owned() });
    }
}

impl Control {
    /// Starts watching over the streams that remained after the rendezvous.
    pub(crate) fn start(
        rank: usize,
        streams: ControlStreams,
        health: &Arc<Health>,
        hosts: &Arc<Hosts>,
        parent: Option<Parent>,
    ) -> Result<Self> {
        let streams = match streams {
            ControlStreams::Leader(streams) => streams,
            ControlStreams::Member(stream) => vec![Some(stream)],
        };
        let vigilance = health.vigilance();
        let stream =
            |stream: Option<_>| stream.map(|stream| ControlStream::new(stream, vigilance)).transpose();
        let mut streams = streams.into_iter().map(stream).collect::<Result<Vec<_>>>()?;
        let (hand_over, monitor) = mpsc::channel();
        let (queue, commands, thread) = Self::prepare(monitor).inspect_err(|error| {
            let failure =
                ControlMessage::Failure { culprit: rank, cause: format!("gave up as it joined: {error}") };
            streams.iter_mut().flatten().for_each(|stream| stream.send(&failure));
        })?;
        health.set_reporter(Arc::clone(&queue) as Arc<dyn Reporter>);
        let mut monitor =
            Monitor::new(rank, streams, Arc::clone(health), Arc::clone(hosts), commands, Arc::clone(&queue));
        monitor.parent = parent;
        // The thread ends only when it is has_broadcast_failure to, by what is returned here.
        let _ = hand_over.send(monitor);
        Ok(Control { queue, thread: Some(thread), limit: Duration::ZERO })
    }

    /// Takes from the system what watching needs: a thread, which waits for its work, and a way to wake it.
    fn prepare(
        monitor: mpsc::Receiver<Monitor>,
    ) -> Result<(Arc<CommandQueue>, mpsc::Receiver<Command>, Thread)> {
        let (sender, commands) = mpsc::channel();
        let queue = Arc::new(CommandQueue { commands: sender, bell: Doorbell::new()? });
        let run = move || runtime::receive(&monitor).map_or((), Monitor::run);
        Ok((queue, commands, runtime::spawn("hexagram-control", run)?))
    }

    /// Tells rank 0 where this rank found itself to be.
    pub(crate) fn report_locality(&self, locality: Locality) {
        self.queue.tell(Command::Located(locality));
    }

    /// Says goodbye. Rank 0 stays until all others have left, but not for longer than `limit`.
    pub(crate) fn leave(mut self, limit: Duration) {
        self.limit = limit;
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.queue.tell(Command::Leave { limit: self.limit });
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::stream::Stream;
    use crate::error::Peer;
    use crate::health::Vigilance;
    use std::os::unix::net::UnixStream;

    /// Rank 0's thread that computes knows of a failure before the one that watches has its report; a member that heard of
    /// the same failure otherwise leaves at that moment.
    #[test]
    fn others_hear_of_a_failure_before_they_hear_who_left_because_of_it() {
        let stream = |stream| ControlStream::new(Stream::Local(stream), &Vigilance::default()).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut member = stream(theirs);
        let peer = |rank| Peer { rank, host: "here".into(), pid: 1 };
        let health = Arc::new(Health::new(0, (0..3).map(peer).collect()));
        let (sender, commands) = mpsc::channel();
        let queue = Arc::new(CommandQueue { commands: sender, bell: Doorbell::new().unwrap() });
        let streams = vec![None, None, Some(stream(ours))];
        let mut monitor =
            Monitor::new(0, streams, Arc::clone(&health), Arc::new(Hosts::new(0, &[])), commands, queue);
        assert!(health.condemn(0, "gave up"));
        monitor.handle(1, ControlMessage::Left(1));
        let (messages, end) = member.receive(3);
        let failure = ControlMessage::Failure { culprit: 0, cause: "gave up".to_owned() };
        assert!(end.is_none() && messages == [failure, ControlMessage::Left(1)], "{messages:?}");
    }
}
