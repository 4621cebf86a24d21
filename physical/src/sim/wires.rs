//! Wires: messages on their way between the ranks of a simulated cluster. Open this to see what a message meets.
//!
//! Messages of one rank to another on one channel follow each other, as they do on a connection: the first of them is a
//! flow on the links of the route, the others wait behind it. When its last byte has left, its sender may reuse the
//! memory, and the message arrives a latency later. One that fits a socket's buffer is its sender's no longer at once.

mod faults;

use super::agenda::{Agenda, Draws, Time, nanoseconds};
use super::cluster::Cluster;
use super::fault::Cut;
use super::flows::{FlowNumber, Flows, LinkNumber};
use super::link::LinkSpec;
use super::routes::Routes;
use super::schedule::Happening;
use super::sockets::Letter;
use crate::hash;
use crate::memory::ReadView;
use crate::transport::{Got, HEADER_BYTES, Label, Ticket};
pub use faults::Flaw;
use faults::{HostParts, SYSTEM};
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

/// Largest message that its sender need not wait for, in bytes: what the buffer of a socket holds at first.
const BUFFER: usize = 64 << 10;

/// Content of a message.
pub(super) enum Content {
    /// Memory of its sender.
    View(ReadView),
    /// A copy.
    Bytes(Box<[u8]>),
    /// Nothing, of memory that has sizes only.
    Size,
    /// Nothing, as its sender has cancelled it, or has died.
    Void,
    /// The end of all that its sender has to say.
    End,
    /// Part of what is said over a socket.
    Letter(Letter),
}

/// A message on its way.
pub(super) struct Parcel {
    pub(super) channel: u16,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) label: Label,
    /// Size of the payload.
    pub(super) bytes: usize,
    pub(super) content: Content,
    /// Ticket of the send; `None` once its sender knows that it is done.
    pub(super) ticket: Option<Ticket>,
}

impl Parcel {
    /// Frees the sender's memory, of which a copy travels on; returns the ticket of which the sender has to be told.
    fn release(&mut self) -> Option<Ticket> {
        if let Content::View(view) = &self.content {
            self.content = match view.host_bytes() {
                Some(bytes) => Content::Bytes(bytes.into()),
                None => Content::Size,
            };
        }
        self.ticket.take()
    }
}

/// Messages and ends of sends that a rank's endpoint has to look at.
#[derive(Default)]
pub(super) struct Mail {
    pub(super) arrived: Vec<Parcel>,
    pub(super) sent: Vec<(Ticket, Got)>,
}

impl Mail {
    pub(super) fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.sent.is_empty()
    }
}

/// Something that happens to messages.
#[derive(Debug, Clone, Copy)]
pub(super) enum MessageEvent {
    /// The time has come to send a message of a line.
    Depart(usize),
    /// A flow may have ended.
    Flow(FlowNumber),
    /// The next message of a line has arrived.
    Arrive(usize),
}

/// EventKind of event, as the fingerprint has it.
#[derive(Debug, Clone, Copy)]
enum EventKind {
    Departure = 1,
    Arrival = 2,
}

/// Messages from one rank to another on one channel.
struct Connection {
    from: usize,
    to: usize,
    route: Vec<LinkNumber>,
    /// Flow of the first message, while it leaves.
    flow: Option<FlowNumber>,
    /// Links of the cluster, for what they do beside having a bandwidth.
    links: Vec<LinkSpec>,
    latency: Time,
    /// Messages that have not left, and from when on they may; the first may be leaving.
    waiting: VecDeque<(Time, Parcel)>,
    /// FlowNumber of those that may leave by now.
    due: usize,
    /// Messages that have left and not arrived.
    flying: VecDeque<Parcel>,
    /// Time at which the last of them arrives: none overtakes another.
    last: Time,
}

/// All messages of a simulated cluster.
pub(super) struct Wires {
    flows: Flows,
    routes: Routes,
    links: Vec<LinkSpec>,
    lines: Vec<Connection>,
    numbers: HashMap<(u16, u32, u32), usize>,
    /// Connection of each flow.
    of_flow: Vec<usize>,
    /// By channel, then by rank.
    mail: HashMap<u16, Vec<Mail>>,
    ranks: usize,
    /// For each host: its ranks, and its links to others.
    hosts: Vec<HostParts>,
    /// Host of each rank.
    host_of: Vec<usize>,
    cuts: Vec<Cut>,
    /// Ranks from which nothing comes any more, with those that know it.
    closed: HashSet<(usize, usize)>,
    /// Ranks that have died.
    dead: HashSet<usize>,
    /// What has arrived over sockets.
    pub(super) letters: Vec<Letter>,
    flaw: Option<Flaw>,
    /// Number of messages of endpoints that have arrived.
    delivered: u64,
    /// Lines, if they are kept.
    log: Option<Vec<String>>,
    draws: Draws,
    events: u64,
    fingerprint: u64,
}

impl Wires {
    pub(super) fn new(cluster: &Cluster, seed: u64) -> Self {
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
            lines: Vec::new(),
            numbers: HashMap::new(),
            of_flow: Vec::new(),
            mail: HashMap::new(),
            ranks: cluster.ranks(),
            hosts: HostParts::all(cluster),
            host_of: cluster.hosts().to_vec(),
            cuts: Vec::new(),
            closed: HashSet::new(),
            dead: HashSet::new(),
            letters: Vec::new(),
            flaw: None,
            delivered: 0,
            log: None,
            draws: Draws::new(seed),
            events: 0,
            fingerprint: hash::START,
        }
    }

    /// Returns what a rank's endpoint has to look at.
    pub(super) fn mail(&mut self, channel: u16, rank: usize) -> &mut Mail {
        let ranks = self.ranks;
        let mail = self.mail.entry(channel).or_insert_with(|| (0..ranks).map(|_| Mail::default()).collect());
        &mut mail[rank]
    }

    /// Returns true if a message of `from` is still on its way to `to`, or waits to leave.
    pub(super) fn is_awaited(&self, channel: u16, from: usize, to: usize) -> bool {
        let number = self.numbers.get(&(channel, from as u32, to as u32));
        number.is_some_and(|number| {
            !self.lines[*number].flying.is_empty() || !self.lines[*number].waiting.is_empty()
        })
    }

    /// Returns true if [`Wires::share`] has to be called before time passes.
    pub(super) fn has_changed(&self) -> bool {
        self.flows.has_changed()
    }

    /// Lets flows share the links anew.
    pub(super) fn share(&mut self, now: Time, agenda: &mut Agenda<Happening>) {
        self.flows.share(now, |at, flow| agenda.add(at, MessageEvent::Flow(flow).into()));
    }

    /// Takes a message that is to leave at a time, and lets the agenda tell of it.
    pub(super) fn send(&mut self, at: Time, parcel: Parcel, agenda: &mut Agenda<Happening>) {
        if self.dead.contains(&parcel.from) {
            return;
        }
        let line = self.line(&parcel);
        self.lines[line].waiting.push_back((at, parcel));
        agenda.add(at, MessageEvent::Depart(line).into());
    }

    /// Lets an event happen; calls `tell` with each rank that has something to look at.
    pub(super) fn happen(
        &mut self,
        now: Time,
        event: MessageEvent,
        agenda: &mut Agenda<Happening>,
        mut tell: impl FnMut(usize),
    ) {
        match event {
            MessageEvent::Depart(line) => self.depart(now, line, agenda, &mut tell),
            MessageEvent::Flow(flow) => {
                // All of them first, as the next messages take their numbers.
                let done: Vec<usize> =
                    self.flows.finish(now, flow).iter().map(|flow| self.of_flow[*flow as usize]).collect();
                done.into_iter().for_each(|line| self.has_left(now, line, agenda, &mut tell));
            }
            MessageEvent::Arrive(line) => {
                let Some(parcel) = self.lines[line].flying.pop_front() else { return };
                let Parcel { channel, from, to, bytes, .. } = parcel;
                self.record(now, EventKind::Arrival, [from, to, bytes, channel.into()]);
                tell(to);
                match parcel.content {
                    _ if self.dead.contains(&to) => {}
                    Content::Void => {}
                    Content::End => drop(self.closed.insert((from, to))),
                    Content::Letter(letter) => self.letters.push(letter),
                    _ if self.is_lost() => {}
                    _ => self.mail(channel, to).arrived.push(parcel),
                }
            }
        }
    }

    /// Lets the messages of a line leave whose time has come.
    fn depart(
        &mut self,
        now: Time,
        line: usize,
        agenda: &mut Agenda<Happening>,
        tell: &mut impl FnMut(usize),
    ) {
        let is_idle = self.lines[line].due == 0;
        while let Connection { waiting, due, .. } = &mut self.lines[line]
            && let Some((at, parcel)) = waiting.get_mut(*due)
            && *at <= now
        {
            *due += 1;
            let is_small = HEADER_BYTES + parcel.bytes <= BUFFER;
            let told = is_small.then(|| parcel.release()).flatten();
            let Parcel { channel, from, to, bytes, .. } = *parcel;
            self.record(now, EventKind::Departure, [from, to, bytes, channel.into()]);
            self.tell_sender(channel, from, told, Got { peer: to, bytes }, tell);
        }
        if is_idle {
            self.leave(now, line, agenda, tell);
        }
    }

    /// Cancels the send that has this ticket: a message that has not left yet never arrives.
    pub(super) fn cancel(&mut self, channel: u16, from: usize, ticket: Ticket) {
        for (_, parcel) in self.lines.iter_mut().flat_map(|line| &mut line.waiting) {
            if parcel.channel == channel && parcel.from == from && parcel.ticket == Some(ticket) {
                parcel.content = Content::Void;
                parcel.ticket = None;
            }
        }
    }

    /// Begins the first message of a line.
    fn leave(
        &mut self,
        now: Time,
        line: usize,
        agenda: &mut Agenda<Happening>,
        tell: &mut impl FnMut(usize),
    ) {
        if self.lines[line].flow.is_some() || self.is_cut(line) {
            return;
        }
        // One after another, as many may be of no way at all.
        while let Connection { route, waiting, due, .. } = &self.lines[line]
            && *due > 0
            && let Some((_, parcel)) = waiting.front()
        {
            if !route.is_empty() {
                let flow = self.flows.begin(now, route.clone(), HEADER_BYTES + parcel.bytes);
                self.lines[line].flow = Some(flow);
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
        now: Time,
        line: usize,
        agenda: &mut Agenda<Happening>,
        tell: &mut impl FnMut(usize),
    ) {
        self.lines[line].flow = None;
        self.pass(now, line, agenda, tell);
        self.leave(now, line, agenda, tell);
    }

    /// Lets the first message of a line fly.
    fn pass(&mut self, now: Time, line: usize, agenda: &mut Agenda<Happening>, tell: &mut impl FnMut(usize)) {
        let late = self.lateness(line);
        let Connection { waiting, due, latency, last, flying, .. } = &mut self.lines[line];
        let Some((_, mut parcel)) = waiting.pop_front() else { return };
        *due -= 1;
        *last = now.saturating_add(*latency).saturating_add(late).max(*last);
        agenda.add(*last, MessageEvent::Arrive(line).into());
        let told = parcel.release();
        let Parcel { channel, from, to, bytes, .. } = parcel;
        flying.push_back(parcel);
        self.tell_sender(channel, from, told, Got { peer: to, bytes }, tell);
    }

    /// Returns the number of departures and arrivals so far, and a hash of all of them.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.events, self.fingerprint)
    }

    /// Tells the sender of a message, if it does not know yet, that its memory is its own again.
    fn tell_sender(
        &mut self,
        channel: u16,
        from: usize,
        ticket: Option<Ticket>,
        got: Got,
        tell: &mut impl FnMut(usize),
    ) {
        if let Some(ticket) = ticket {
            self.mail(channel, from).sent.push((ticket, got));
            tell(from);
        }
    }

    /// Mixes a departure or an arrival into the fingerprint of the run.
    fn record(&mut self, now: Time, kind: EventKind, words: [usize; 4]) {
        self.events += 1;
        let [from, to, bytes, channel] = words;
        self.note(now, || {
            let what = if matches!(kind, EventKind::Departure) { "leaves for" } else { "arrives at" };
            let over =
                if channel == SYSTEM.into() { "sockets".to_owned() } else { format!("channel {channel}") };
            format!("{bytes} bytes of rank {from}, {over}: {what} rank {to}")
        });
        let words = words.map(|word| word as u64);
        // Rotated, as hashes of whole words lose what their highest bits say.
        let mix = |hash: u64, word| hash::step(hash.rotate_left(23), word);
        self.fingerprint = [now, kind as u64].into_iter().chain(words).fold(self.fingerprint, mix);
    }

    /// Draws by how much later than usual a message arrives.
    fn lateness(&mut self, line: usize) -> Time {
        let mut late = 0;
        for link in &self.lines[line].links {
            if !link.jitter.is_zero() {
                late += (nanoseconds(link.jitter) as f64 * self.draws.fraction()) as Time;
            }
            if link.stalls > 0.0 && self.draws.fraction() < link.stalls {
                late += nanoseconds(link.stall);
            }
        }
        late
    }

    /// Returns the line of a message, which is made for the first.
    fn line(&mut self, parcel: &Parcel) -> usize {
        let Parcel { channel, from, to, .. } = *parcel;
        if let Some(number) = self.numbers.get(&(channel, from as u32, to as u32)) {
            return *number;
        }
        let route = self.routes.route(from, to);
        let links: Vec<LinkSpec> = route.links.iter().map(|(link, _)| self.links[*link]).collect();
        let line = Connection {
            from,
            to,
            flow: None,
            route: route
                .links
                .iter()
                .map(|(link, back)| (2 * link + usize::from(*back)) as LinkNumber)
                .collect(),
            latency: links.iter().map(|link| nanoseconds(link.latency)).sum(),
            links: links.into_iter().filter(|link| !link.jitter.is_zero() || link.stalls > 0.0).collect(),
            waiting: VecDeque::new(),
            due: 0,
            flying: VecDeque::new(),
            last: 0,
        };
        self.lines.push(line);
        self.numbers.insert((channel, from as u32, to as u32), self.lines.len() - 1);
        self.lines.len() - 1
    }

    /// Takes what a rank's endpoint has to look at.
    pub(super) fn take_mail(&mut self, channel: u16, rank: usize) -> Mail {
        mem::take(self.mail(channel, rank))
    }
}
