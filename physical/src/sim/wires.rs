//! Wires: messages on their way between the ranks of a simulated cluster. Open this to see what a message meets.
//!
//! Messages of one rank to another on one channel follow each other, as they do on a connection: the first of them is a
//! flow on the links of the route, the others wait behind it. When its last byte has left, its sender may reuse the
//! memory, and the message arrives a latency later. One that fits a socket's buffer is its sender's no longer at once.

use super::agenda::{Agenda, Draws, Time, nanoseconds};
use super::cluster::{Cluster, Routes};
use super::flows::{Flows, Link, Number};
use super::link::LinkSpec;
use crate::memory::ReadView;
use crate::transport::{Got, HEADER_BYTES, Label, Ticket};
use std::collections::{HashMap, VecDeque};
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
    /// Nothing, as its sender has cancelled it.
    Void,
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
    /// Frees the sender's memory, of which a copy travels on.
    fn release(&mut self) {
        if let Content::View(view) = &self.content {
            self.content = match view.host_bytes() {
                Some(bytes) => Content::Bytes(bytes.into()),
                None => Content::Size,
            };
        }
    }
}

/// What a rank's endpoint has to look at.
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
pub(super) enum Event {
    /// A rank has come to send a message.
    Depart(Box<Parcel>),
    /// A flow may have ended.
    Flow(Number),
    /// A message has arrived.
    Arrive(Box<Parcel>),
}

/// Messages from one rank to another on one channel.
struct Line {
    route: Vec<Link>,
    /// Links of the cluster, for what they do beside having a bandwidth.
    links: Vec<LinkSpec>,
    latency: Time,
    /// The first is on its way, unless the line is idle.
    queue: VecDeque<Box<Parcel>>,
    /// Time at which the last message arrives: none overtakes another.
    last: Time,
    /// Messages that have left and not arrived.
    flying: usize,
}

/// All messages of a simulated cluster.
pub(super) struct Wires {
    flows: Flows,
    routes: Routes,
    links: Vec<LinkSpec>,
    lines: Vec<Line>,
    numbers: HashMap<(u16, u32, u32), usize>,
    /// Line of each flow.
    of_flow: Vec<usize>,
    /// By channel, then by rank.
    mail: HashMap<u16, Vec<Mail>>,
    ranks: usize,
    draws: Draws,
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
            draws: Draws::new(seed),
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
        number.is_some_and(|number| self.lines[*number].flying > 0 || !self.lines[*number].queue.is_empty())
    }

    /// Returns true if [`Wires::share`] has to be called before time passes.
    pub(super) fn has_changed(&self) -> bool {
        self.flows.has_changed()
    }

    /// Lets flows share the links anew.
    pub(super) fn share(&mut self, now: Time, agenda: &mut Agenda<super::schedule::Event>) {
        self.flows.share(now, |at, flow| agenda.add(at, Event::Flow(flow).into()));
    }

    /// Lets an event happen; returns the ranks that have something to look at.
    pub(super) fn happen(
        &mut self,
        now: Time,
        event: Event,
        agenda: &mut Agenda<super::schedule::Event>,
        mut tell: impl FnMut(usize),
    ) {
        match event {
            Event::Depart(mut parcel) => {
                let line = self.line(&parcel);
                if HEADER_BYTES + parcel.bytes <= BUFFER {
                    self.tell_sender(&mut parcel, &mut tell);
                }
                self.lines[line].queue.push_back(parcel);
                if self.lines[line].queue.len() == 1 {
                    self.leave(now, line, agenda, &mut tell);
                }
            }
            Event::Flow(flow) => {
                for flow in self.flows.finish(now, flow) {
                    self.has_left(now, self.of_flow[flow as usize], agenda, &mut tell);
                }
            }
            Event::Arrive(parcel) => {
                let line = self.line(&parcel);
                self.lines[line].flying -= 1;
                tell(parcel.to);
                if !matches!(parcel.content, Content::Void) {
                    self.mail(parcel.channel, parcel.to).arrived.push(*parcel);
                }
            }
        }
    }

    /// Cancels the send that has this ticket: a message that has not left yet never arrives.
    pub(super) fn cancel(&mut self, channel: u16, from: usize, ticket: Ticket) {
        let lines = self.lines.iter_mut().filter(|line| !line.queue.is_empty());
        for parcel in lines.flat_map(|line| &mut line.queue) {
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
        agenda: &mut Agenda<super::schedule::Event>,
        tell: &mut impl FnMut(usize),
    ) {
        let Line { route, queue, .. } = &self.lines[line];
        let Some(parcel) = queue.front() else { return };
        if route.is_empty() {
            return self.has_left(now, line, agenda, tell);
        }
        let flow = self.flows.begin(now, route.clone(), HEADER_BYTES + parcel.bytes);
        let place = flow as usize;
        if place >= self.of_flow.len() {
            self.of_flow.resize(place + 1, 0);
        }
        self.of_flow[place] = line;
    }

    /// Ends the first message of a line at its sender, and begins the next.
    fn has_left(
        &mut self,
        now: Time,
        line: usize,
        agenda: &mut Agenda<super::schedule::Event>,
        tell: &mut impl FnMut(usize),
    ) {
        let Some(mut parcel) = self.lines[line].queue.pop_front() else { return };
        self.tell_sender(&mut parcel, tell);
        let late = self.lateness(line);
        let Line { latency, last, flying, .. } = &mut self.lines[line];
        *last = now.saturating_add(*latency).saturating_add(late).max(*last);
        *flying += 1;
        agenda.add(*last, Event::Arrive(parcel).into());
        self.leave(now, line, agenda, tell);
    }

    /// Tells the sender of a message that its memory is its own again.
    fn tell_sender(&mut self, parcel: &mut Parcel, tell: &mut impl FnMut(usize)) {
        parcel.release();
        if let Some(ticket) = parcel.ticket.take() {
            let got = Got { peer: parcel.to, bytes: parcel.bytes };
            self.mail(parcel.channel, parcel.from).sent.push((ticket, got));
            tell(parcel.from);
        }
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
        let line = Line {
            route: route.links.iter().map(|(link, back)| (2 * link + usize::from(*back)) as Link).collect(),
            latency: links.iter().map(|link| nanoseconds(link.latency)).sum(),
            links: links.into_iter().filter(|link| !link.jitter.is_zero() || link.stalls > 0.0).collect(),
            queue: VecDeque::new(),
            last: 0,
            flying: 0,
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
