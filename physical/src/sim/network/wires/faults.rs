//! Faults of the wires of a simulated cluster.
//!
//! A cut holds messages that have not left yet: these continue, from their first byte, when it is healed. Of a rank
//! that dies, data that the system has already taken still arrives; of a host that dies, none does.

use super::{LineNumber, MessageContent, ScheduledEvent, SimulatedMessage, Wires};
use crate::memory::dtype::DType;
use crate::sim::cluster::Cluster;
use crate::sim::cluster::fault::Cut;
use crate::sim::network::flows::LinkNumber;
use crate::sim::schedule::agenda::{Agenda, Nanoseconds};
use crate::sim::sockets::Datagram;
use crate::transport::Label;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::tag::Tag;

/// Channel of data that does not come from an endpoint.
pub(super) const SYSTEM: u16 = u16::MAX;

/// Parts of a host that faults strike.
pub(super) struct HostParts {
    ranks: Vec<usize>,
    /// Numbers of the host's links in the cluster, except those to its ranks.
    links: Vec<usize>,
}

impl HostParts {
    /// Returns the parts of all hosts.
    pub(super) fn all(cluster: &Cluster) -> Vec<HostParts> {
        let hosts = cluster.hosts().iter().max().map_or(0, |last| last + 1);
        let ranks =
            |host: usize| (0..cluster.ranks()).filter(|rank| cluster.hosts()[*rank] == host).collect();
        (0..hosts).map(|host| HostParts { ranks: ranks(host), links: cluster.links_of(host) }).collect()
    }
}

/// A flaw of the simulated library, for runs with faults to find.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The message of this number, counted from 0, never arrives.
    DropMessage(u64),
    /// Skips one of every `every` heartbeats.
    SkipHeartbeats {
        /// Number of heartbeats, the last of which is skipped.
        every: u64,
    },
}

impl Wires {
    /// Gives the wires a flaw for tests to find.
    pub(crate) fn set_flaw(&mut self, flaw: Option<Flaw>) {
        self.flaw = flaw;
    }

    /// Counts a message of an endpoint that arrives; returns true if it is the one that is lost.
    pub(super) fn is_lost(&mut self) -> bool {
        self.delivered += 1;
        self.flaw == Some(Flaw::DropMessage(self.delivered - 1))
    }

    /// Keeps a log of all events from now on.
    pub(crate) fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// Takes the log; empty if none was kept.
    pub(crate) fn take_log(&mut self) -> Vec<String> {
        self.log.take().unwrap_or_default()
    }

    /// Adds a line to the log, if there is one.
    pub(crate) fn note(&mut self, now: Nanoseconds, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            let seconds = now / 1_000_000_000;
            log.push(format!("{seconds}.{:09} {}", now % 1_000_000_000, what()));
        }
    }

    /// Returns the ranks of a host.
    pub(crate) fn ranks_of(&self, host: usize) -> Vec<usize> {
        self.hosts[host].ranks.clone()
    }

    /// Returns true if messages of a line cannot leave.
    pub(super) fn is_cut(&self, line: LineNumber) -> bool {
        if self.cuts.is_empty() {
            return false;
        }
        let line = &self.lines[line as usize];
        let from = self.host_of[line.from];
        let to = self.host_of[line.to];
        self.cuts.iter().any(|cut| cut.holds(from, to))
    }

    /// Blocks all messages between hosts.
    pub(crate) fn cut(&mut self, now: Nanoseconds, cut: Cut) {
        self.cuts.push(cut);
        for line in 0..self.lines.len() {
            if self.is_cut(line as LineNumber)
                && let Some(flow) = self.lines[line].flow.take()
            {
                self.flows.end(now, flow);
            }
        }
    }

    /// Ends all cuts.
    pub(crate) fn heal(
        &mut self,
        now: Nanoseconds,
        agenda: &mut Agenda<ScheduledEvent>,
        mut tell: impl FnMut(usize),
    ) {
        self.cuts.clear();
        for line in 0..self.lines.len() {
            self.leave(now, line as LineNumber, agenda, &mut tell);
        }
    }

    /// Gives the links of a host a share of their bandwidth.
    pub(crate) fn slow(&mut self, now: Nanoseconds, host: usize, share: f64) {
        for link in &self.hosts[host].links {
            let bandwidth = self.links[*link].bandwidth * share;
            self.flows.set_bandwidth(now, 2 * *link as LinkNumber, bandwidth);
            self.flows.set_bandwidth(now, 2 * *link as LinkNumber + 1, bandwidth);
        }
    }

    /// Blocks all further arrivals at a rank whose host has died, and loses its messages that have not left completely.
    pub(crate) fn vanish(&mut self, rank: usize) {
        self.dead.insert(rank);
        self.void(rank, |_| true);
    }

    /// Blocks all further arrivals at a rank that has died, and loses its messages that the system has not taken yet.
    pub(crate) fn bury(&mut self, rank: usize) {
        self.dead.insert(rank);
        self.void(rank, |message| message.ticket.is_some());
    }

    fn void(&mut self, rank: usize, lost: impl Fn(&SimulatedMessage) -> bool) {
        for line in self.lines.iter().filter(|line| line.from == rank) {
            for queue in [&line.waiting, &line.due] {
                self.messages.for_each(queue, |message| {
                    if lost(message) {
                        message.lose();
                    }
                });
            }
        }
    }

    /// Notifies `to` that nothing more comes from `from`.
    pub(crate) fn close(
        &mut self,
        at: Nanoseconds,
        from: usize,
        to: usize,
        agenda: &mut Agenda<ScheduledEvent>,
    ) {
        self.send_as_system(at, from, to, 0, MessageContent::End, agenda);
    }

    /// Sends the data that a rank writes to a socket.
    pub(crate) fn post(&mut self, at: Nanoseconds, datagram: Datagram, agenda: &mut Agenda<ScheduledEvent>) {
        let Datagram { from, to, .. } = datagram;
        let bytes = datagram.piece.bytes().len();
        self.send_as_system(at, from, to, bytes, MessageContent::Datagram(datagram), agenda);
    }

    fn send_as_system(
        &mut self,
        at: Nanoseconds,
        from: usize,
        to: usize,
        bytes: usize,
        content: MessageContent,
        agenda: &mut Agenda<ScheduledEvent>,
    ) {
        let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::U8, 0);
        let label = Label { tag: Tag::from_bytes(&[0; 16]), fingerprint };
        let outbox = self.open(SYSTEM, from);
        self.send(at, outbox, to, SimulatedMessage { from, label, bytes, content, ticket: None }, agenda);
    }

    /// Returns true if `to` has been notified that nothing more comes from `from`.
    pub(crate) fn is_closed(&self, from: usize, to: usize) -> bool {
        self.closed.contains(&(from, to))
    }
}
