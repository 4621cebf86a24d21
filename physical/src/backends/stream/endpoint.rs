//! Endpoint of one rank over byte streams: writes frames, reads frames, and matches them with receives.

use super::frame::Header;
use super::inbox::{FrameEvent, FrameParser, PayloadSink, ReadTarget};
use super::outbox::{FrameQueue, SendProgress};
use super::{Link, Parking, ReadOutcome};
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::memory::{ReadView, WriteView};
use crate::transport::fingerprint::Fingerprint;
use crate::transport::matching::{Early, Match, Matcher, Posted};
use crate::transport::tickets::Tickets;
use crate::transport::{
    Bell, HEADER_BYTES, Label, Membership, ReceiveMode, Received, Source, Tally, Ticket, Traffic, Transport,
    TransportKind,
};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Maximum bytes per read that cannot go directly into a view; they stay in the second-level cache.
const STAGING: usize = 128 * 1024;
/// Reads from one peer before the next peer's turn.
const TURNS: usize = 16;

/// Rank of an endpoint, and its common state with the rest of its world.
pub(crate) struct EndpointIdentity {
    pub(crate) kind: TransportKind,
    pub(crate) rank: usize,
    /// Ranks with which it is connected.
    pub(crate) peers: Vec<usize>,
    pub(crate) health: Arc<Health>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) bell: Arc<dyn Bell>,
    pub(crate) crowded: bool,
}

impl EndpointIdentity {
    /// Creates the identity of a member of `ranks`; `bell` wakes it.
    pub(crate) fn new(
        member: &Membership,
        ranks: &[usize],
        kind: TransportKind,
        bell: Arc<dyn Bell>,
    ) -> Self {
        EndpointIdentity {
            kind,
            rank: member.rank,
            peers: ranks.iter().copied().filter(|peer| *peer != member.rank).collect(),
            health: Arc::clone(&member.health),
            traffic: Arc::clone(&member.traffic),
            bell,
            crowded: member.is_crowded(),
        }
    }
}

/// Endpoint over byte streams.
pub(crate) struct StreamEndpoint<L, P> {
    identity: EndpointIdentity,
    /// Counts of messages to each rank, by rank; ranks that are reached alike share one.
    tallies: Vec<Arc<Tally>>,
    state: RefCell<StreamState<L, P>>,
}

/// Streams to and from one peer.
struct PeerStream<L> {
    link: L,
    outbox: FrameQueue,
    inbox: FrameParser,
    /// Set once nothing more can be written; earlier data of the peer may still be read.
    broken: bool,
    /// Reason why nothing more can be read, once that is so.
    ended: Option<String>,
}

impl<L> PeerStream<L> {
    /// Creates the streams over a link that has carried no bytes yet.
    fn new(link: L) -> Self {
        PeerStream {
            link,
            outbox: FrameQueue::default(),
            inbox: FrameParser::new(),
            broken: false,
            ended: None,
        }
    }
}

/// Streams and operations of one endpoint.
struct StreamState<L, P> {
    /// Streams by rank. The one of this rank is unused: its messages to itself take no stream.
    streams: Vec<PeerStream<L>>,
    parking: P,
    tickets: Tickets,
    matcher: Matcher<Vec<u8>>,
    /// Bytes that were read but not yet parsed, as words, so that elements in them are aligned.
    staging: Vec<u64>,
}

/// Returns the tally of each rank: one for all that are reached by the same transport.
fn tallies<L: Link>(links: &[L], traffic: &Traffic) -> Vec<Arc<Tally>> {
    let mut paths: Vec<(TransportKind, Arc<Tally>)> = Vec::new();
    let tally = |link: &L| {
        let path = link.path();
        if let Some((_, tally)) = paths.iter().find(|(other, _)| *other == path) {
            return Arc::clone(tally);
        }
        let tally = traffic.tally(path);
        paths.push((path, Arc::clone(&tally)));
        tally
    };
    links.iter().map(tally).collect()
}

impl<L: Link, P: Parking> StreamEndpoint<L, P> {
    /// Creates an endpoint over `links`, by rank, which waits for them in `parking`. The links to this rank itself, and
    /// to those that are no peers, are never used.
    pub(crate) fn new(identity: EndpointIdentity, links: Vec<L>, parking: P) -> Self {
        identity.health.wake(Arc::downgrade(&identity.bell));
        let tallies = tallies(&links, &identity.traffic);
        let state = StreamState {
            streams: links.into_iter().map(PeerStream::new).collect(),
            parking,
            tickets: Tickets::default(),
            matcher: Matcher::default(),
            staging: vec![0; STAGING / size_of::<u64>()],
        };
        StreamEndpoint { identity, tallies, state: RefCell::new(state) }
    }

    /// Returns the ranks with which this one is connected.
    fn peers(&self) -> impl Iterator<Item = usize> {
        self.identity.peers.iter().copied()
    }

    /// Parks unless there is work after all, here or according to `more`.
    pub(crate) fn park_unless(&self, at_most: Duration, more: impl FnOnce() -> bool) {
        self.state.borrow_mut().parking.announce_park();
        if self.progress() || more() {
            return self.state.borrow_mut().parking.end_park();
        }
        self.state.borrow_mut().parking.park(at_most);
    }

    /// Returns sender and fingerprint of a message that has arrived on the lane of `label` and that no receive waits
    /// for.
    pub(crate) fn early_in_lane(&self, label: &Label) -> Option<(usize, Fingerprint)> {
        self.state.borrow().matcher.early_in_lane(label)
    }

    /// Returns the receives that wait for a certain peer.
    pub(crate) fn awaited(&self) -> Vec<(Ticket, usize, Label)> {
        self.state.borrow().matcher.awaited().collect()
    }

    /// Fails a receive whose message will never come.
    pub(crate) fn fail(&self, ticket: Ticket, error: Error) {
        let state = &mut *self.state.borrow_mut();
        state.matcher.cancel(ticket);
        state.tickets.finish(ticket, Err(error));
    }

    /// Delivers a message from this rank to itself, or keeps it until its receive is posted.
    fn loop_back(&self, state: &mut StreamState<L, P>, ticket: Ticket, label: Label, view: &ReadView) {
        let rank = self.identity.rank;
        let bytes = view.bytes();
        let sink = self.choose(state, rank, Header { length: bytes.len() as u64, label });
        let sink = match sink {
            PayloadSink::Landing(mut posted) => {
                posted.landing.push(bytes);
                PayloadSink::Landing(posted)
            }
            PayloadSink::Early(_) => PayloadSink::Early(bytes.to_vec()),
            PayloadSink::Discard => PayloadSink::Discard,
        };
        self.close(state, rank, label, sink);
        state.tickets.finish(ticket, Ok(Received { peer: rank, bytes: bytes.len() }));
    }

    /// Chooses the destination of a payload.
    fn choose(&self, state: &mut StreamState<L, P>, from: usize, header: Header) -> PayloadSink {
        match state.matcher.find_posted(from, &header.label) {
            Match::Found(posted) if posted.landing.fits(header.length) => {
                PayloadSink::Landing(Box::new(posted))
            }
            Match::Found(posted) => {
                let peer = self.identity.health.peers()[from].clone();
                let error = posted.label.wrong_size(header.length, posted.landing.capacity(), peer);
                state.tickets.finish(posted.ticket, Err(error));
                PayloadSink::Discard
            }
            Match::Conflict(posted, theirs) => {
                let peer = self.identity.health.peers()[from].clone();
                state.tickets.finish(posted.ticket, Err(posted.label.mismatch(theirs, peer)));
                PayloadSink::Discard
            }
            Match::Nothing => PayloadSink::Early(Vec::new()),
        }
    }

    /// Hands over a complete payload.
    fn close(&self, state: &mut StreamState<L, P>, from: usize, label: Label, sink: PayloadSink) {
        match sink {
            PayloadSink::Landing(posted) => {
                let bytes = posted.landing.landed();
                state.tickets.finish(posted.ticket, Ok(Received { peer: from, bytes }));
            }
            PayloadSink::Early(message) => {
                // Its receive may have been posted while the payload was arriving.
                let header = Header { length: message.len() as u64, label };
                match self.choose(state, from, header) {
                    PayloadSink::Landing(mut posted) => {
                        posted.landing.push(&message);
                        self.close(state, from, label, PayloadSink::Landing(posted));
                    }
                    PayloadSink::Early(_) => state.matcher.keep_early(Early { from, label, message }),
                    PayloadSink::Discard => {}
                }
            }
            PayloadSink::Discard => {}
        }
    }

    /// Writes as much as `peer`'s stream takes. Returns true if anything was written.
    fn flush(&self, state: &mut StreamState<L, P>, peer: usize) -> bool {
        let StreamState { streams, tickets, .. } = state;
        let PeerStream { link, outbox, broken, .. } = &mut streams[peer];
        if outbox.is_empty() || *broken {
            return false;
        }
        let result = outbox.flush(link, |sent| match sent {
            SendProgress::Partially(ticket, bytes) => tickets.advance(ticket, bytes),
            SendProgress::Completely(ticket, bytes) => tickets.finish(ticket, Ok(Received { peer, bytes })),
        });
        // A failed write only makes the rank suspect; the verdict, or a grace period, decides.
        result.unwrap_or_else(|_| {
            *broken = true;
            false
        })
    }

    /// Reads the arrived data from `peer`. Returns true if anything was read.
    fn fill(&self, state: &mut StreamState<L, P>, peer: usize) -> bool {
        let mut moved = false;
        for _ in 0..TURNS {
            let landing = state.streams[peer].inbox.ticket();
            let ended = match self.read(state, peer) {
                Ok(ReadOutcome::Bytes(_)) => {
                    moved = true;
                    // The task that waits for this message may be about to post the next receive; otherwise, the next
                    // message would need a separate buffer.
                    let done = landing.is_some() && state.streams[peer].inbox.ticket() != landing;
                    if done && !state.matcher.expects(peer) {
                        break;
                    }
                    continue;
                }
                Ok(ReadOutcome::Nothing) => break,
                Ok(ReadOutcome::End) => "closed its connection".to_owned(),
                Err(error) => format!("cannot be reached any more ({error})"),
            };
            state.streams[peer].ended.get_or_insert(ended);
            break;
        }
        moved
    }

    /// Reads once from `peer`, into a view if possible.
    fn read(&self, state: &mut StreamState<L, P>, peer: usize) -> io::Result<ReadOutcome> {
        let landing = state.streams[peer].inbox.ticket();
        let StreamState { streams, staging, .. } = state;
        let PeerStream { link, inbox, .. } = &mut streams[peer];
        let read = match inbox.read_target() {
            ReadTarget::Direct(into) => {
                let read = link.read(into)?;
                if let ReadOutcome::Bytes(bytes) = read {
                    let event = inbox.stored(bytes);
                    self.handle(state, peer, event);
                }
                read
            }
            ReadTarget::Staging { skip, at_most } => {
                let staging: &mut [u8] = bytemuck::cast_slice_mut(staging);
                let end = staging.len().min(skip.saturating_add(at_most));
                let read = link.read(&mut staging[skip..end])?;
                if let ReadOutcome::Bytes(bytes) = read {
                    self.push(state, peer, skip..skip + bytes);
                }
                read
            }
        };
        if let (Some(ticket), ReadOutcome::Bytes(bytes)) = (landing, read) {
            state.tickets.advance(ticket, bytes);
        }
        Ok(read)
    }

    /// Parses and lands the data in the staging buffer.
    fn push(&self, state: &mut StreamState<L, P>, peer: usize, read: Range<usize>) {
        let staging = std::mem::take(&mut state.staging);
        let mut bytes = &bytemuck::cast_slice::<u64, u8>(&staging)[read];
        while !bytes.is_empty() && state.streams[peer].ended.is_none() {
            let event = state.streams[peer].inbox.push(&mut bytes);
            self.handle(state, peer, event);
        }
        state.staging = staging;
    }

    /// Performs the steps that an inbox asks for.
    fn handle(&self, state: &mut StreamState<L, P>, peer: usize, mut event: Option<FrameEvent>) {
        while let Some(now) = event.take() {
            match now {
                FrameEvent::Opened(header) => {
                    let sink = self.choose(state, peer, header);
                    event = state.streams[peer].inbox.open(header, sink);
                }
                FrameEvent::Closed(label, sink) => self.close(state, peer, label, sink),
                FrameEvent::Damaged => {
                    let cause = "sent bytes that are not of the hexagram protocol";
                    state.streams[peer].ended = Some(cause.to_owned());
                    self.identity.health.report_failure(peer, cause);
                }
            }
        }
    }
}

impl<L: Link, P: Parking> Transport for StreamEndpoint<L, P> {
    fn kind(&self) -> TransportKind {
        self.identity.kind
    }

    fn rank(&self) -> usize {
        self.identity.rank
    }

    fn health(&self) -> &Arc<Health> {
        &self.identity.health
    }

    fn bell(&self) -> Arc<dyn Bell> {
        Arc::clone(&self.identity.bell)
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        self.tallies[to].sent(HEADER_BYTES + view.byte_len());
        if to == self.identity.rank {
            self.loop_back(state, ticket, label, &view);
        } else {
            state.streams[to].outbox.push(ticket, label, view);
            self.flush(state, to);
        }
        ticket
    }

    fn post_recv(&self, source: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let posted = Posted::new(ticket, source, label, view, land);
        match state.matcher.find_early(source, &label) {
            Match::Found(early) => {
                state.matcher.keep_posted(posted);
                self.close(state, early.from, early.label, PayloadSink::Early(early.message));
            }
            Match::Conflict(early, theirs) => {
                let peer = self.identity.health.peers()[early.from].clone();
                state.tickets.finish(ticket, Err(label.mismatch(theirs, peer)));
            }
            Match::Nothing => {
                let mut streams =
                    state.streams.iter_mut().enumerate().filter(|(from, _)| source.accepts(*from));
                let left = streams.try_fold(posted, |posted, (_, stream)| stream.inbox.adopt(posted));
                left.into_iter().for_each(|posted| state.matcher.keep_posted(posted));
            }
        }
        ticket
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Received>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        state.matcher.cancel(ticket);
        for PeerStream { link, outbox, inbox, .. } in &mut state.streams {
            outbox.cancel(ticket, link.committed());
            inbox.cancel(ticket);
        }
        state.tickets.close(ticket);
    }

    fn progress(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        state.parking.poll_readiness();
        let mut moved = false;
        for peer in self.peers() {
            if state.streams[peer].ended.is_none() {
                moved |= self.flush(state, peer);
                moved |= self.fill(state, peer);
            }
        }
        moved
    }

    fn crowded(&self) -> bool {
        let shares_core = self.state.borrow_mut().parking.shares_core();
        self.identity.crowded || shares_core
    }

    fn park(&self, at_most: Duration) {
        self.park_unless(at_most, || false);
    }

    fn ended(&self, peer: usize) -> Option<String> {
        self.state.borrow().streams[peer].ended.clone()
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        self.state.borrow_mut().tickets.moved(ticket)
    }
}
