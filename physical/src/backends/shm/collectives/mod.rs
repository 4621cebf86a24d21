//! Native collectives over shared memory: each rank publishes the operation in its control block, and reads the
//! required data of the peers.
//!
//! *Small* operations carry their bytes in the control block: one exchange of a cache line, after which every rank
//! computes the result itself, in the same order. *Large* ones, on registered memory, read the peers' buffers in place:
//!
//! ```text
//! all-reduce       rank r reduces chunk r piece by piece, and copies every piece of a peer's chunk that is complete
//! reduce-scatter   rank r reduces block r of all inputs into its output
//! all-gather       rank r copies all inputs
//! broadcast        all ranks copy the root's buffer
//! ```
//!
//! An all-reduce of other memory, on the first lane, does the same through a stage (`staged`). Messages carry all
//! remaining operations.
//!
//! Peers only read, so that the memory of a rank that gives up is never written late, and no rank returns before all
//! have finished reading. A rank that gives up announces this before its memory is released, and its peers then have
//! no result (see `control_block`). Contributions are combined in the order that [`Size`](crate::transport::native::Size)
//! defines for messages, so that results are equal to theirs, bit for bit.

pub(super) mod entry;
pub(super) mod reduction;
pub(super) mod running;
pub(super) mod staged;

use super::control_block::{LANES, PAYLOAD};
use super::segment::Segment;
use super::segment::region::Regions;
use crate::control::health::Health;
use crate::error::{Error, Result};
use crate::memory::{ReadView, WriteView};
use crate::transport::fingerprint::OperationKind;
use crate::transport::native::AtOnce;
use crate::transport::tickets::Tickets;
use crate::transport::{Label, Received, Tally, Ticket};
use entry::{RoundEntry, SmallOutcome, prepare};
use running::{RunningCollective, StepOutcome};
use staged::StagedTransfer;
use std::collections::VecDeque;
use std::sync::Arc;

/// Number of times that a small operation polls the control blocks before its caller waits otherwise.
const POLLS: usize = 200;
/// Number of times that a small operation yields its core if ranks outnumber cores, with one poll after each.
const YIELDS: usize = 8;
/// Number of immediate operations from one check of the cores of the peers to the next.
const LOOKS: u32 = 32;
/// Operations that may complete in one call.
const IMMEDIATE: [OperationKind; 3] =
    [OperationKind::Barrier, OperationKind::AllReduce, OperationKind::Broadcast];

/// State that all operations of one endpoint share.
pub(super) struct ShmContext {
    pub(super) rank: usize,
    /// Segments by rank.
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) regions: Regions,
    pub(super) health: Arc<Health>,
    pub(super) traffic: Arc<Tally>,
    /// True if ranks outnumber cores: see [`Transport::crowded`](crate::Transport::crowded).
    pub(super) crowded: bool,
}

impl ShmContext {
    /// Returns the number of ranks.
    pub(super) fn size(&self) -> usize {
        self.segments.len()
    }

    /// Returns the segment of this rank.
    pub(super) fn mine(&self) -> &Segment {
        &self.segments[self.rank]
    }

    /// Returns the number of times to poll the control blocks before the caller waits otherwise.
    fn polls(&self) -> usize {
        if self.crowded { 1 } else { POLLS }
    }

    /// Waits a few microseconds for the peers of a small operation that this rank has posted. Returns `None` if not all
    /// of them arrive.
    #[inline]
    fn wait_for_small(&self, entry: &mut RoundEntry, output: &mut [u8]) -> Result<Option<SmallOutcome>> {
        let mut outcome = entry.poll(self, output, self.polls());
        // Not before: its fence waits until the post is visible, and the peers' posts arrive meanwhile.
        self.unpark_peers();
        let yields = if self.crowded { YIELDS } else { 0 };
        for _ in 0..yields {
            if !matches!(outcome, Ok(None)) {
                break;
            }
            std::thread::yield_now();
            outcome = entry.poll(self, output, 1);
        }
        outcome
    }

    /// Returns all ranks but this one.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> {
        let rank = self.rank;
        (0..self.size()).filter(move |peer| *peer != rank)
    }

    /// Wakes the peers that are parked. Called after publishing something.
    pub(super) fn unpark_peers(&self) {
        Segment::fence_before_unpark();
        self.peers().for_each(|peer| self.segments[peer].unpark_if_parked());
    }
}

/// Operations of one lane.
#[derive(Default)]
struct LaneState {
    /// Number of native operations begun.
    round: u64,
    /// Operation in progress.
    current: Option<(Ticket, RunningCollective)>,
    /// Label of the last round, if this rank entered it immediately and continues it as a running collective.
    resumable: Option<Label>,
    /// Operations posted while another one is in progress.
    waiting: VecDeque<(Ticket, Label, Option<ReadView>, WriteView)>,
}

/// Native collectives of one endpoint.
pub(super) struct ShmCollectives {
    pub(super) context: ShmContext,
    lanes: Vec<LaneState>,
    /// Lanes with an operation in progress.
    active: Vec<usize>,
    tickets: Tickets,
    /// Number of operations that were tried immediately.
    tried: u32,
}

impl ShmCollectives {
    /// Creates the collectives of an endpoint.
    pub(super) fn new(context: ShmContext) -> Self {
        let lanes = (0..LANES).map(|_| LaneState::default()).collect();
        ShmCollectives { context, lanes, active: Vec::new(), tickets: Tickets::default(), tried: 0 }
    }

    /// Returns true if this operation is carried out natively: see
    /// [`Collectives::offers`](crate::transport::native::Collectives::offers).
    pub(super) fn offers(&self, label: &Label, input: Option<&ReadView>, output: &WriteView) -> bool {
        if !self.has_lane(label) {
            return false;
        }
        let (bytes, registration) = match input {
            Some(input) => (input.byte_len(), input.registration()),
            None => (output.byte_len(), output.registration()),
        };
        let registered = self.context.regions.contains(registration.map(|(registration, _)| registration));
        // There is one stage, and a lane has one operation at a time.
        let staged = label.tag.lane() == 0
            && label.fingerprint.operation == OperationKind::AllReduce
            && StagedTransfer::fits(&self.context.mine().shape());
        bytes <= PAYLOAD || registered || staged
    }

    /// Returns true if the lane of the operation is in the control block, which serves only the communicator of the
    /// world.
    fn has_lane(&self, label: &Label) -> bool {
        label.tag.is_of_world() && label.tag.lane() < LANES
    }

    /// Starts an operation, or queues it behind the one in progress on its lane.
    pub(super) fn post(&mut self, label: Label, input: Option<ReadView>, output: WriteView) -> Ticket {
        let ticket = self.tickets.open();
        let lane = label.tag.lane();
        match self.lanes[lane].current {
            Some(_) => self.lanes[lane].waiting.push_back((ticket, label, input, output)),
            None => self.begin(lane, ticket, label, input, output),
        }
        ticket
    }

    /// Returns true once in [`LOOKS`] calls. Operations that end immediately never reach the code that spreads the
    /// ranks over the cores.
    pub(super) fn is_time_to_look_around(&mut self) -> bool {
        self.tried = self.tried.wrapping_add(1);
        self.context.crowded && self.tried.is_multiple_of(LOOKS)
    }

    /// Carries out a small operation immediately: see [`Collectives::at_once`](crate::transport::native::Collectives::at_once).
    pub(super) fn at_once(&mut self, label: &Label, bytes: &mut [u8]) -> AtOnce {
        let lane = label.tag.lane();
        if !self.has_lane(label)
            || bytes.len() > PAYLOAD
            || !IMMEDIATE.contains(&label.fingerprint.operation)
            || self.lanes[lane].current.is_some()
        {
            return AtOnce::Not;
        }
        let ShmCollectives { context, lanes, .. } = self;
        let state = &mut lanes[lane];
        state.round += 1;
        state.resumable = None;
        prepare(context, &label.fingerprint, bytes);
        let payload = RoundEntry::payload(context, label, bytes);
        let mut entry = RoundEntry::post(context, lane, state.round, *label, payload);
        match context.wait_for_small(&mut entry, bytes) {
            Ok(Some(SmallOutcome::Complete)) => AtOnce::Done(Ok(())),
            // The running collective then waits for the peers, or for the verdict on the world.
            Ok(None | Some(SmallOutcome::WithdrawnBy(_))) => {
                state.resumable = Some(*label);
                AtOnce::Begun
            }
            Err(error) => {
                context.mine().control_block().withdraw(lane, state.round);
                AtOnce::Done(Err(error))
            }
        }
    }

    /// Begins the next operation of a free lane. Small operations are often complete when this returns.
    fn begin(
        &mut self,
        lane: usize,
        ticket: Ticket,
        label: Label,
        input: Option<ReadView>,
        output: WriteView,
    ) {
        let state = &mut self.lanes[lane];
        let mut running = if state.resumable.take() == Some(label) {
            RunningCollective::resume(RoundEntry::posted(lane, state.round, label), output)
        } else {
            state.round += 1;
            RunningCollective::begin(&self.context, lane, state.round, label, input, output)
        };
        for _ in 0..self.context.polls() {
            match running.advance(&self.context) {
                Ok(StepOutcome::Nothing) => {}
                Ok(StepOutcome::Moved(_)) => break,
                Ok(StepOutcome::Done(bytes)) => {
                    drop(running);
                    return self.tickets.finish(ticket, Ok(Received { peer: self.context.rank, bytes }));
                }
                Err(error) => {
                    running.withdraw(&self.context);
                    return self.tickets.finish(ticket, Err(error));
                }
            }
        }
        self.lanes[lane].current = Some((ticket, running));
        self.active.push(lane);
    }

    /// Advances the operation of a lane. Returns true if bytes moved or the operation ended.
    fn advance(&mut self, lane: usize) -> bool {
        let Some((ticket, running)) = &mut self.lanes[lane].current else { return false };
        let ticket = *ticket;
        let outcome = match running.advance(&self.context) {
            Ok(StepOutcome::Nothing) => return false,
            Ok(StepOutcome::Moved(bytes)) => {
                self.tickets.advance(ticket, bytes);
                return true;
            }
            Ok(StepOutcome::Done(bytes)) => Ok(Received { peer: self.context.rank, bytes }),
            Err(error) => Err(error),
        };
        self.end(lane, ticket, outcome);
        true
    }

    /// Ends the operation of a lane and begins the next one.
    fn end(&mut self, lane: usize, ticket: Ticket, outcome: Result<Received>) {
        // Views are released first: a caller that sees the outcome may use the memory.
        self.free(lane, outcome.is_ok());
        self.tickets.finish(ticket, outcome);
        self.begin_waiting(lane);
    }

    /// Releases the memory of a lane's operation, which peers may still read unless it was `completed`.
    fn free(&mut self, lane: usize, completed: bool) {
        self.active.retain(|active| *active != lane);
        if let Some((_, running)) = self.lanes[lane].current.take()
            && !completed
        {
            running.withdraw(&self.context);
        }
    }

    /// Begins the queued operations of a lane that has become free.
    fn begin_waiting(&mut self, lane: usize) {
        while self.lanes[lane].current.is_none()
            && let Some((ticket, label, input, output)) = self.lanes[lane].waiting.pop_front()
        {
            self.begin(lane, ticket, label, input, output);
        }
    }

    /// Advances all operations. Returns true if any made progress.
    pub(super) fn progress(&mut self) -> bool {
        let mut moved = false;
        for at in (0..self.active.len()).rev() {
            // An operation that ends is removed from the list; the order of those before it stays.
            if let Some(lane) = self.active.get(at).copied() {
                moved |= self.advance(lane);
            }
        }
        moved
    }

    /// Returns the tickets of native operations.
    pub(super) fn tickets(&mut self) -> &mut Tickets {
        &mut self.tickets
    }

    /// Gives an operation up. Peers that still wait for this rank learn of it when the failure of the world is
    /// reported.
    pub(super) fn cancel(&mut self, ticket: Ticket) {
        for lane in 0..LANES {
            self.lanes[lane].waiting.retain(|(waiting, ..)| *waiting != ticket);
            if self.lanes[lane].current.as_ref().is_some_and(|(current, _)| *current == ticket) {
                self.free(lane, false);
                self.begin_waiting(lane);
            }
        }
        self.tickets.close(ticket);
    }

    /// Returns the ranks for which an operation waits.
    pub(super) fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let current = self.lanes.iter().filter_map(|lane| lane.current.as_ref());
        let running = current.filter(|(current, _)| *current == ticket).map(|(_, running)| running).next();
        running.map_or_else(Vec::new, |running| running.missing(&self.context))
    }

    /// Returns why an operation in progress gets nothing more from `peer`, if so.
    pub(super) fn ended(&self, peer: usize) -> Option<String> {
        let mut current = self.active.iter().filter_map(|lane| self.lanes[*lane].current.as_ref());
        let left = current.any(|(_, running)| {
            peer != self.context.rank && running.entry.has_withdrawn(&self.context, peer)
        });
        left.then(|| "gave the operation up".to_owned())
    }

    /// Returns the operations in progress that not all ranks have entered.
    pub(super) fn entering(&self) -> impl Iterator<Item = (Ticket, Label)> {
        let current = self.active.iter().filter_map(|lane| self.lanes[*lane].current.as_ref());
        current
            .filter(|(_, running)| running.is_entering())
            .map(|(ticket, running)| (*ticket, running.entry.label))
    }

    /// Fails an operation in which some rank will never take part.
    pub(super) fn fail(&mut self, ticket: Ticket, error: Error) {
        let holds = |lane: &LaneState| lane.current.as_ref().is_some_and(|(current, _)| *current == ticket);
        if let Some(lane) = self.lanes.iter().position(holds) {
            self.end(lane, ticket, Err(error));
        }
    }
}

impl Drop for ShmCollectives {
    fn drop(&mut self) {
        (0..LANES).for_each(|lane| self.free(lane, false));
    }
}
