//! Wires: messages on their way between the ranks of a simulated cluster.
//!
//! Messages of one rank to another on one channel follow each other, as on a connection: the first of them is a flow
//! on the links of the route, and the others wait behind it. After its last byte has left, its sender may reuse the
//! memory, and the message arrives a latency later. A message that fits a socket buffer leaves its sender
//! immediately.

mod faults;

use super::flows::{CohortNumber, FlowNumber, FlowRoute, Flows, LinkNumber};
use super::messages::{MessageContent, MessageQueue, MessageStore, SimulatedMessage};
use super::routes::Routes;
use crate::memory::hash;
use crate::sim::cluster::Cluster;
use crate::sim::cluster::fault::Cut;
use crate::sim::cluster::link::LinkSpec;
use crate::sim::mailbox::{BoxNumber, Mailboxes, RankMailbox};
use crate::sim::schedule::ScheduledEvent;
use crate::sim::schedule::agenda::{Agenda, Nanoseconds, RandomDraws, nanoseconds};
use crate::sim::sockets::Datagram;
use crate::transport::{HEADER_BYTES, Received, Ticket};
pub use faults::Flaw;
use faults::{HostParts, SYSTEM};
use std::collections::HashSet;

/// Largest message for which the sender does not wait, in bytes: the initial size of a socket buffer.
const BUFFER: usize = 64 << 10;

/// Number of a line.
type LineNumber = u32;

/// An event of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MessageEvent {
    /// The time to send a message of a line.
    Depart(LineNumber),
    /// Flows of a cohort may have ended.
    Flows(CohortNumber),
    /// The next message of a line has arrived.
    Arrive(LineNumber),
}

/// Kind of an event in the fingerprint.
#[derive(Debug, Clone, Copy)]
enum EventKind {
    Departure = 1,
    Arrival = 2,
}

/// Messages from one rank to another on one channel.
struct ChannelWire {
    from: usize,
    to: usize,
    /// Mailbox of the sender.
    outbox: BoxNumber,
    /// Mailbox of the receiver.
    inbox: BoxNumber,
    route: FlowRoute,
    /// Flow of the first message, while it leaves.
    flow: Option<FlowNumber>,
    /// Links of the cluster, for their properties other than bandwidth.
    links: Box<[LinkSpec]>,
    latency: Nanoseconds,
    /// Messages that may not leave yet.
    waiting: MessageQueue,
    /// Messages that may leave by now; the first may be leaving.
    due: MessageQueue,
    /// Messages that have left and not arrived.
    flying: MessageQueue,
    /// Arrival time of the last of them: messages do not overtake each other.
    last: Nanoseconds,
}

/// All messages of a simulated cluster.
pub(crate) struct Wires {
    flows: Flows,
    routes: Routes,
    links: Vec<LinkSpec>,
    messages: MessageStore,
    lines: Vec<ChannelWire>,
    /// Lines from each mailbox, with the ranks that they lead to, in the order of these.
    from: Vec<Vec<(usize, LineNumber)>>,
    /// Connection of each flow.
    of_flow: Vec<LineNumber>,
    /// Scratch: flows whose bytes have left.
    done: Vec<FlowNumber>,
    mailboxes: Mailboxes,
    /// For each host: its ranks, and its links to others.
    hosts: Vec<HostParts>,
    /// Host of each rank.
    host_of: Vec<usize>,
    cuts: Vec<Cut>,
    /// Ranks from which nothing more comes, with those that have been notified.
    closed: HashSet<(usize, usize)>,
    /// Ranks that have died.
    dead: HashSet<usize>,
    /// Datagrams that have arrived over sockets.
    pub(crate) datagrams: Vec<Datagram>,
    flaw: Option<Flaw>,
    /// Number of messages of endpoints that have arrived.
    delivered: u64,
    /// Lines, if they are kept.
    log: Option<Vec<String>>,
    draws: RandomDraws,
    events: u64,
    fingerprint: u64,
}

impl Wires {
    pub(crate) fn new(cluster: &Cluster, seed: u64) -> Self {
        let mut flows = Flows::default();
        let links: Vec<LinkSpec> = cluster.links().copied().collect();
        for link in &links {
            // One for each direction.
            flows.add_link(link.bandwidth);
            flows.add_link(link.bandwidth);
        }
        Wires {
            flows,
            routes: Routes::new(cluster),
            links,
            messages: MessageStore::default(),
            lines: Vec::new(),
            from: Vec::new(),
            of_flow: Vec::new(),
            done: Vec::new(),
            mailboxes: Mailboxes::new(cluster.ranks()),
            hosts: HostParts::all(cluster),
            host_of: cluster.hosts().to_vec(),
            cuts: Vec::new(),
            closed: HashSet::new(),
            dead: HashSet::new(),
            datagrams: Vec::new(),
            flaw: None,
            delivered: 0,
            log: None,
            draws: RandomDraws::new(seed),
            events: 0,
            fingerprint: hash::START,
        }
    }

    /// Returns the mailbox of a rank on a channel.
    pub(crate) fn open(&mut self, channel: u16, rank: usize) -> BoxNumber {
        let number = self.mailboxes.number(channel, rank);
        self.from.resize_with(self.mailboxes.len(), Vec::new);
        number
    }

    /// Returns the content of a mailbox.
    pub(crate) fn mailbox(&mut self, number: BoxNumber) -> &mut RankMailbox {
        self.mailboxes.get(number)
    }

    /// Returns true if a message of `from` is still on its way to this mailbox, or waits to leave.
    pub(crate) fn is_awaited(&self, mailbox: BoxNumber, from: usize) -> bool {
        let to = self.mailboxes.rank(mailbox);
        let line = self.find(self.mailboxes.of_peer(mailbox, from), to);
        line.is_ok_and(|line| {
            let ChannelWire { waiting, due, flying, .. } = &self.lines[line as usize];
            ![waiting, due, flying].iter().all(|queue| queue.is_empty())
        })
    }

    /// Returns the time at which [`Wires::share`] must be called, if anything has changed.
    pub(crate) fn share_at(&self) -> Option<Nanoseconds> {
        self.flows.share_at()
    }

    /// Shares the links among the flows anew.
    pub(crate) fn share(&mut self, now: Nanoseconds, agenda: &mut Agenda<ScheduledEvent>) {
        self.flows.share(now, |at, cohort| agenda.add(at, MessageEvent::Flows(cohort).into()));
    }

    /// Takes a message from a mailbox to a rank that leaves at a time, and enters it in the agenda.
    pub(crate) fn send(
        &mut self,
        at: Nanoseconds,
        from: BoxNumber,
        to: usize,
        message: SimulatedMessage,
        agenda: &mut Agenda<ScheduledEvent>,
    ) {
        if self.dead.contains(&self.mailboxes.rank(from)) {
            return;
        }
        let line = self.line(from, to);
        self.messages.add(&mut self.lines[line as usize].waiting, at, message);
        agenda.add(at, MessageEvent::Depart(line).into());
    }

    /// Executes an event; calls `tell` with each rank that must check for changes.
    pub(crate) fn happen(
        &mut self,
        now: Nanoseconds,
        event: MessageEvent,
        agenda: &mut Agenda<ScheduledEvent>,
        mut tell: impl FnMut(usize),
    ) {
        match event {
            MessageEvent::Depart(line) => self.depart(now, line, agenda, &mut tell),
            MessageEvent::Flows(cohort) => {
                let mut done = std::mem::take(&mut self.done);
                if let Some(at) = self.flows.finish(now, cohort, &mut done) {
                    agenda.add(at, event.into());
                }
                for flow in done.drain(..) {
                    self.has_left(now, self.of_flow[flow as usize], agenda, &mut tell);
                }
                self.done = done;
            }
            MessageEvent::Arrive(line) => {
                let ChannelWire { from, to, inbox, flying, .. } = &mut self.lines[line as usize];
                let from = *from;
                let to = *to;
                let inbox = *inbox;
                let Some(message) = self.messages.take(flying) else { return };
                self.record(now, EventKind::Arrival, line, message.bytes);
                tell(to);
                match message.content {
                    _ if self.dead.contains(&to) => {}
                    MessageContent::Void => {}
                    MessageContent::End => drop(self.closed.insert((from, to))),
                    MessageContent::Datagram(datagram) => self.datagrams.push(datagram),
                    _ if self.is_lost() => {}
                    _ => self.mailboxes.get(inbox).arrive(message),
                }
            }
        }
    }

    /// Sends the messages of a line whose time has come.
    fn depart(
        &mut self,
        now: Nanoseconds,
        line: LineNumber,
        agenda: &mut Agenda<ScheduledEvent>,
        tell: &mut impl FnMut(usize),
    ) {
        let is_idle = self.lines[line as usize].due.is_empty();
        loop {
            let ChannelWire { waiting, due, .. } = &mut self.lines[line as usize];
            if self.messages.departs(waiting).is_none_or(|at| at > now) {
                break;
            }
            let Some(message) = self.messages.pass(waiting, due) else { break };
            let bytes = message.bytes;
            let is_small = HEADER_BYTES + bytes <= BUFFER;
            let told = is_small.then(|| message.release()).flatten();
            self.record(now, EventKind::Departure, line, bytes);
            self.tell_sender(line, told, bytes, tell);
        }
        if is_idle {
            self.leave(now, line, agenda, tell);
        }
    }

    /// Cancels the send that has this ticket: a message that has not left yet never arrives.
    pub(crate) fn cancel(&mut self, mailbox: BoxNumber, ticket: Ticket) {
        self.mailboxes.get(mailbox).cancel(ticket);
        for (_, line) in &self.from[mailbox] {
            let ChannelWire { waiting, due, .. } = &self.lines[*line as usize];
            for queue in [waiting, due] {
                self.messages.for_each(queue, |message| {
                    if message.ticket == Some(ticket) {
                        message.lose();
                    }
                });
            }
        }
    }

    /// Begins the first message of a line.
    fn leave(
        &mut self,
        now: Nanoseconds,
        line: LineNumber,
        agenda: &mut Agenda<ScheduledEvent>,
        tell: &mut impl FnMut(usize),
    ) {
        if self.lines[line as usize].flow.is_some() || self.is_cut(line) {
            return;
        }
        // One after another, since many may have no links.
        while let ChannelWire { route, due, .. } = &self.lines[line as usize]
            && let Some(bytes) = self.messages.bytes(due)
        {
            if !route.is_empty() {
                let flow = self.flows.begin(now, *route, HEADER_BYTES + bytes);
                self.lines[line as usize].flow = Some(flow);
                let place = flow as usize;
                self.of_flow.resize(self.of_flow.len().max(place + 1), 0);
                self.of_flow[place] = line;
                return;
            }
            self.pass(now, line, agenda, tell);
        }
    }

    /// Ends the first message of a line at its sender, and begins the next.
    fn has_left(
        &mut self,
        now: Nanoseconds,
        line: LineNumber,
        agenda: &mut Agenda<ScheduledEvent>,
        tell: &mut impl FnMut(usize),
    ) {
        self.pass(now, line, agenda, tell);
        let ChannelWire { flow, due, .. } = &mut self.lines[line as usize];
        let Some(number) = *flow else { return };
        if let Some(bytes) = self.messages.bytes(due) {
            self.flows.renew(now, number, HEADER_BYTES + bytes);
        } else {
            *flow = None;
            self.flows.end(now, number);
        }
    }

    /// Starts the transfer of the first message of a line.
    fn pass(
        &mut self,
        now: Nanoseconds,
        line: LineNumber,
        agenda: &mut Agenda<ScheduledEvent>,
        tell: &mut impl FnMut(usize),
    ) {
        let late = self.lateness(line);
        let ChannelWire { due, latency, last, flying, .. } = &mut self.lines[line as usize];
        let Some(message) = self.messages.pass(due, flying) else { return };
        *last = now.saturating_add(*latency).saturating_add(late).max(*last);
        agenda.add(*last, MessageEvent::Arrive(line).into());
        let told = message.release();
        let bytes = message.bytes;
        self.tell_sender(line, told, bytes, tell);
    }

    /// Returns the number of departures and arrivals so far, and a hash of all of them.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.events, self.fingerprint)
    }

    /// Notifies the sender of a message, if it has not been notified, that its memory is free again.
    fn tell_sender(
        &mut self,
        line: LineNumber,
        ticket: Option<Ticket>,
        bytes: usize,
        tell: &mut impl FnMut(usize),
    ) {
        let ChannelWire { from, to, outbox, .. } = self.lines[line as usize];
        let got = Received { peer: to, bytes };
        if ticket.is_some_and(|ticket| self.mailboxes.get(outbox).has_sent(ticket, got)) {
            tell(from);
        }
    }

    /// Mixes a departure or an arrival into the fingerprint of the run.
    fn record(&mut self, now: Nanoseconds, kind: EventKind, line: LineNumber, bytes: usize) {
        self.events += 1;
        let ChannelWire { from, to, outbox, .. } = self.lines[line as usize];
        let channel = self.mailboxes.get(outbox).channel;
        self.note(now, || {
            let what = if matches!(kind, EventKind::Departure) { "leaves for" } else { "arrives at" };
            let over = if channel == SYSTEM { "sockets".to_owned() } else { format!("channel {channel}") };
            format!("{bytes} bytes of rank {from}, {over}: {what} rank {to}")
        });
        let words = [from as u64, to as u64, bytes as u64, channel.into()];
        // Rotated, since hashes of whole words lose the information in their highest bits.
        let mix = |hash: u64, word| hash::step(hash.rotate_left(23), word);
        self.fingerprint = [now, kind as u64].into_iter().chain(words).fold(self.fingerprint, mix);
    }

    /// Draws by how much later than usual a message arrives.
    fn lateness(&mut self, line: LineNumber) -> Nanoseconds {
        let mut late = 0;
        for link in &self.lines[line as usize].links {
            if !link.jitter.is_zero() {
                late += (nanoseconds(link.jitter) as f64 * self.draws.fraction()) as Nanoseconds;
            }
            if link.stalls > 0.0 && self.draws.fraction() < link.stalls {
                late += nanoseconds(link.stall);
            }
        }
        late
    }

    /// Returns the line from a mailbox to a rank, or its place among those of the mailbox.
    fn find(&self, outbox: BoxNumber, to: usize) -> Result<LineNumber, usize> {
        let lines = &self.from[outbox];
        lines.binary_search_by_key(&to, |(to, _)| *to).map(|at| lines[at].1)
    }

    /// Returns the line from a mailbox to a rank, which is made for the first message.
    fn line(&mut self, outbox: BoxNumber, to: usize) -> LineNumber {
        let place = match self.find(outbox, to) {
            Ok(line) => return line,
            Err(place) => place,
        };
        let from = self.mailboxes.rank(outbox);
        let route = self.routes.route(from, to);
        let links: Vec<LinkSpec> = route.links.iter().map(|(link, _)| self.links[*link]).collect();
        let directed = route.links.iter().map(|(link, back)| (2 * link + usize::from(*back)) as LinkNumber);
        let number = self.lines.len() as LineNumber;
        self.lines.push(ChannelWire {
            from,
            to,
            outbox,
            inbox: self.mailboxes.of_peer(outbox, to),
            route: self.flows.add_route(directed),
            flow: None,
            latency: links.iter().map(|link| nanoseconds(link.latency)).sum(),
            links: LinkSpec::drawn(&links).into(),
            waiting: MessageQueue::default(),
            due: MessageQueue::default(),
            flying: MessageQueue::default(),
            last: 0,
        });
        self.from[outbox].insert(place, (to, number));
        number
    }
}
