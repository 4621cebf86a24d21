//! Collectives of MPI: the agreement before them, and their progress.
//!
//! Ranks that call different MPI collectives hang or crash, so fingerprints are compared first. In rounds k = 0, 1, …
//! rank r writes to rank r + 2^k and reads from r − 2^k, as in a dissemination barrier. A rank that has completed all
//! rounds knows that all ranks agree. This happens at the first use of each fingerprint on a lane, or always.
//!
//! MPI does not report for which ranks a collective waits. Therefore a rank that has been in one for a while sends
//! its presence to all others; ranks whose presence is unknown are missing. A message whose sender is in a different
//! operation of that number ends the collective on both sides.

use super::endpoint::{MpiEndpoint, MpiState};
use super::link::MpiComm;
use super::run::CollectiveRun;
use crate::error::Result;
use crate::memory::dtype::DType;
use crate::memory::landing::Landing;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::matching::Posted;
use crate::transport::native::Check;
use crate::transport::{Label, ReceiveMode, Received, Source, Ticket, native};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

/// First step of the agreement, beyond the steps of any operation.
const AGREEMENT: usize = 0xff00;
/// Step of a message that announces that its sender is in the collective.
const PRESENCE: usize = AGREEMENT - 1;
/// Step that no message has.
const NO_STEP: usize = AGREEMENT - 2;
/// First bytes of a close message: a length that no message has.
const CLOSE: [u8; 8] = [0xff; 8];
/// Number of fingerprints remembered per lane; all ranks forget them at the same operation.
const MEMORY: usize = 1024;

/// Input and output of a collective.
pub(super) type CollectiveViews = (Option<ReadView>, WriteView);

/// Returns true if a message only announces that its sender is in the collective.
pub(super) fn is_presence(label: &Label) -> bool {
    label.tag.at_step(PRESENCE).is_ok_and(|tag| tag == label.tag)
}

/// Returns true if two ranks are in different operations of one number.
pub(super) fn contradict(mine: &Label, theirs: &Label) -> bool {
    let same = mine.tag.same_lane(&theirs.tag) && mine.tag.sequence() == theirs.tag.sequence();
    same && mine.fingerprint != theirs.fingerprint
}

/// MPI's collectives on one channel.
pub(super) struct MpiCollectives {
    /// Communicators by lane; operations of further lanes are carried by messages.
    lanes: Vec<MpiComm>,
    check: Check,
    agreed: HashMap<usize, HashSet<Fingerprint>>,
    running: Vec<PendingCollective>,
    /// The number after that of the last collective that a rank is known to have entered, by rank and lane.
    entered: Vec<Vec<u64>>,
    /// The last collective in which a rank has announced its presence, by rank and lane.
    present: HashMap<(usize, usize), Label>,
    /// True if the MPI constant for in-place operations is known.
    in_place: bool,
}

/// Collective that has not ended.
struct PendingCollective {
    /// Ticket, or `None` once the operation was abandoned.
    ticket: Option<Ticket>,
    label: Label,
    phase: CollectivePhase,
    since: Instant,
    /// Set once this rank has announced its presence to the others.
    announced: bool,
}

/// Phases of a collective.
enum CollectivePhase {
    /// Waiting for others of its lane: MPI distinguishes collectives of a communicator only by their order.
    Queued { rounds: u32, work: Option<CollectiveViews> },
    /// Compares fingerprints, in round `round`, with a message from rank `from`.
    Agreeing { round: u32, from: usize, message: Ticket, work: Option<CollectiveViews> },
    /// Carried out by MPI.
    Running(CollectiveRun),
}

impl MpiCollectives {
    /// Creates the collectives of a channel.
    pub(super) fn new(ranks: usize, lanes: Vec<MpiComm>, check: Check, in_place: bool) -> Self {
        let entered = vec![vec![0; lanes.len()]; ranks];
        let agreed = HashMap::new();
        let present = HashMap::new();
        let running = Vec::new();
        MpiCollectives { lanes, check, agreed, running, entered, present, in_place }
    }

    /// Records that a rank waits in a collective.
    pub(super) fn record_presence(&mut self, rank: usize, label: &Label) {
        self.enters(rank, label);
        self.present.insert((rank, label.tag.lane()), *label);
    }

    /// Returns a rank and the collective in which it waits, if that proves that the message of `source` for `mine` never comes.
    pub(super) fn elsewhere(&self, source: Source, mine: &Label) -> Option<(usize, Label)> {
        let proves = |theirs: &Label| {
            let beyond = theirs.tag.sequence() > mine.tag.sequence() && theirs.tag.same_lane(&mine.tag);
            contradict(mine, theirs) || (beyond && source != Source::Any)
        };
        let present = self.present.iter().map(|((rank, _), theirs)| (*rank, *theirs));
        present.into_iter().find(|(rank, theirs)| source.accepts(*rank) && proves(theirs))
    }

    /// Records that a rank has entered a collective.
    pub(super) fn enters(&mut self, rank: usize, label: &Label) {
        if let Some(next) = self.entered[rank].get_mut(label.tag.lane()) {
            *next = (*next).max(label.tag.sequence() + 1);
        }
    }

    /// Builds the message that `rank` sends to all others when it closes its endpoint.
    pub(super) fn close_message(&self, rank: usize) -> Box<[u8]> {
        let numbers = self.entered[rank].iter().flat_map(|next| next.to_le_bytes());
        CLOSE.into_iter().chain(numbers).collect()
    }

    /// Records a close message. Returns false for any other message.
    pub(super) fn record_close(&mut self, from: usize, message: &[u8]) -> bool {
        let Some(numbers) = message.strip_prefix(&CLOSE) else { return false };
        let numbers =
            numbers.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok().map(u64::from_le_bytes));
        for (next, number) in self.entered[from].iter_mut().zip(numbers) {
            *next = (*next).max(number);
        }
        true
    }

    /// Returns true if ranks must compare fingerprints before this operation.
    fn needs_agreement(&mut self, label: &Label) -> bool {
        if self.check == Check::Full {
            return true;
        }
        let agreed = self.agreed.entry(label.tag.lane()).or_default();
        if agreed.len() == MEMORY {
            agreed.clear();
        }
        agreed.insert(label.fingerprint)
    }

    /// Returns the operations that a caller on this rank waits for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = (Ticket, Label)> {
        self.running.iter().filter_map(|native| Some((native.ticket?, native.label)))
    }

    /// Abandons an operation. Returns the awaited message, which is no longer needed.
    pub(super) fn abandon(&mut self, ticket: Ticket) -> Option<Ticket> {
        let at = self.running.iter().position(|native| native.ticket == Some(ticket))?;
        match &mut self.running[at].phase {
            CollectivePhase::Agreeing { message, .. } => {
                let message = *message;
                self.running.remove(at);
                Some(message)
            }
            CollectivePhase::Queued { .. } => {
                self.running.remove(at);
                None
            }
            CollectivePhase::Running(run) => {
                run.abandon();
                self.running[at].ticket = None;
                None
            }
        }
    }

    /// Returns the ranks for which a pending operation waits: those whose message is missing, or which are not known to have
    /// entered the collective. The other ranks of a broadcast may have left it already, unless they are `gone`, and never
    /// entered it.
    pub(super) fn missing(&self, ticket: Ticket, gone: &[bool]) -> Vec<usize> {
        let native = self.running.iter().find(|native| native.ticket == Some(ticket));
        let Some(PendingCollective { label, phase, announced, .. }) = native else { return Vec::new() };
        match phase {
            CollectivePhase::Agreeing { from, .. } => vec![*from],
            CollectivePhase::Queued { .. } => Vec::new(),
            CollectivePhase::Running(_) => {
                let lane = label.tag.lane();
                let number = label.tag.sequence();
                let told = *announced && label.fingerprint.operation != OperationKind::Broadcast;
                let absent = |rank: &usize| self.entered[*rank][lane] <= number && (told || gone[*rank]);
                (0..gone.len()).filter(absent).collect()
            }
        }
    }
}

impl MpiEndpoint {
    /// Begins a round of the agreement.
    fn agree(
        &self,
        state: &mut MpiState,
        label: &Label,
        round: u32,
        work: CollectiveViews,
    ) -> Result<CollectivePhase> {
        let distance = (1 << round) % self.size;
        let to = (self.rank + distance) % self.size;
        let from = (self.rank + self.size - distance) % self.size;
        let label = Label { tag: label.tag.at_step(AGREEMENT + round as usize)?, ..*label };
        let nothing = Buffer::zeroed(DType::U8, 0)?.write(0..0)?;
        let message = state.tickets.open();
        self.write_header(state, to, label);
        let landing = Landing::new(nothing, ReceiveMode::Copy);
        self.await_message(state, Posted { ticket: message, source: Source::Rank(from), label, landing });
        Ok(CollectivePhase::Agreeing { round, from, message, work: Some(work) })
    }

    /// Returns the phase after `rounds` rounds of the agreement.
    fn next_phase(
        &self,
        state: &mut MpiState,
        label: &Label,
        rounds: u32,
        work: CollectiveViews,
    ) -> Result<CollectivePhase> {
        if 1usize << rounds < self.size {
            return self.agree(state, label, rounds, work);
        }
        state.collectives.enters(self.rank, label);
        let comm = state.collectives.lanes[label.tag.lane()];
        CollectiveRun::new(comm, self.size, label.fingerprint, work).map(CollectivePhase::Running)
    }

    /// Advances all collectives. Returns true if any made progress.
    pub(super) fn advance_collectives(&self, state: &mut MpiState) -> bool {
        if state.collectives.running.is_empty() {
            return false;
        }
        let mut moved = false;
        let mut running = std::mem::take(&mut state.collectives.running);
        let mut busy = HashSet::new();
        running.retain_mut(|native| match self.advance(state, native, &busy, &mut moved) {
            Ok(more) => {
                if more {
                    busy.insert(native.label.tag.lane());
                }
                more
            }
            Err(error) => {
                moved = true;
                if let Some(ticket) = native.ticket.take() {
                    state.tickets.finish(ticket, Err(error));
                }
                let CollectivePhase::Running(run) = &mut native.phase else { return false };
                run.abandon();
                !run.is_over()
            }
        });
        state.collectives.running.append(&mut running);
        moved
    }

    /// Takes a collective through its queue and the agreement. Returns `None` once MPI carries it out, otherwise true
    /// if there is more to do.
    fn advance_agreement(
        &self,
        state: &mut MpiState,
        native: &mut PendingCollective,
        busy: &HashSet<usize>,
        moved: &mut bool,
    ) -> Result<Option<bool>> {
        // Continues until it waits for a message that has not arrived.
        while !matches!(native.phase, CollectivePhase::Running(_)) {
            let next = match &mut native.phase {
                CollectivePhase::Queued { .. } if busy.contains(&native.label.tag.lane()) => {
                    return Ok(Some(true));
                }
                CollectivePhase::Queued { rounds, work } => work.take().map(|work| (*rounds, work)),
                CollectivePhase::Agreeing { round, message, work, .. } => {
                    let Poll::Ready(outcome) = state.tickets.poll(*message) else { return Ok(Some(true)) };
                    outcome?;
                    work.take().map(|work| (*round + 1, work))
                }
                CollectivePhase::Running(_) => None,
            };
            let Some((rounds, work)) = next else { return Ok(Some(false)) };
            *moved = true;
            native.phase = self.next_phase(state, &native.label, rounds, work)?;
        }
        Ok(None)
    }

    /// Advances one collective. Returns true if there is more to do.
    fn advance(
        &self,
        state: &mut MpiState,
        native: &mut PendingCollective,
        busy: &HashSet<usize>,
        moved: &mut bool,
    ) -> Result<bool> {
        if let Some(more) = self.advance_agreement(state, native, busy, moved)? {
            return Ok(more);
        }
        let CollectivePhase::Running(run) = &mut native.phase else { return Ok(true) };
        let Some(ticket) = native.ticket else { return Ok(!run.is_over()) };
        if !native.announced && native.since.elapsed() > self.health.heartbeat().beat {
            native.announced = true;
            self.announce_presence(state, &native.label)?;
        }
        let bytes = run.progress()?;
        *moved |= bytes > 0;
        state.tickets.advance(ticket, bytes);
        if !run.is_done() {
            return Ok(true);
        }
        let bytes = run.bytes();
        // Its views are released before anyone can see that it is complete.
        run.abandon();
        *moved = true;
        state.tickets.finish(ticket, Ok(Received { peer: self.rank, bytes }));
        Ok(false)
    }

    /// Notifies all other ranks that this rank is in the collective `label`.
    fn announce_presence(&self, state: &mut MpiState, label: &Label) -> Result<()> {
        let label = Label { tag: label.tag.at_step(PRESENCE)?, ..*label };
        for peer in (0..self.size).filter(|peer| *peer != self.rank) {
            self.write_header(state, peer, label);
        }
        Ok(())
    }

    /// Queues a collective, unless a message has shown that another rank calls a different operation.
    fn begin(&self, state: &mut MpiState, label: Label, ticket: Ticket, work: CollectiveViews) -> Result<()> {
        let elsewhere = Label { tag: label.tag.at_step(NO_STEP)?, ..label };
        let early = self.find_contradiction(state, &elsewhere);
        if let Some((from, theirs)) = early.or_else(|| state.collectives.elsewhere(Source::Any, &label)) {
            self.write_header(state, from, Label { fingerprint: label.fingerprint, ..theirs });
            return Err(label.mismatch(theirs.fingerprint, self.health.peers()[from].clone()));
        }
        let rounds =
            if state.collectives.needs_agreement(&label) { 0 } else { self.size.next_power_of_two().ilog2() };
        let phase = CollectivePhase::Queued { rounds, work: Some(work) };
        let ticket = Some(ticket);
        let since = Instant::now();
        state.collectives.running.push(PendingCollective { ticket, label, phase, since, announced: false });
        Ok(())
    }
}

impl native::Collectives for MpiEndpoint {
    fn offers(&self, label: &Label, _: &[usize], _: Option<&ReadView>, _: &WriteView) -> bool {
        let collectives = &self.state.borrow().collectives;
        let offered = match label.fingerprint.operation {
            OperationKind::AllReduce => collectives.in_place,
            OperationKind::Barrier
            | OperationKind::Broadcast
            | OperationKind::AllGather
            | OperationKind::ReduceScatter => true,
            _ => false,
        };
        offered && label.tag.is_of_world() && label.tag.lane() < collectives.lanes.len()
    }

    fn post(&self, label: Label, _: &Arc<[usize]>, input: Option<ReadView>, output: WriteView) -> Ticket {
        self.tally.carried(native::payload(&label.fingerprint, self.size, self.rank));
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        match self.begin(state, label, ticket, (input, output)) {
            Ok(()) => drop(self.advance_collectives(state)),
            Err(error) => state.tickets.finish(ticket, Err(error)),
        }
        ticket
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let state = self.state.borrow();
        state.collectives.missing(ticket, &state.gone)
    }
}
