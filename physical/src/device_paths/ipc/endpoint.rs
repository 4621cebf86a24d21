//! Endpoint of one rank among GPUs that read each other's memory: operations from their post to the device's queue.

use super::agreement::{Agreed, Agreement};
use super::collectives::EndpointReach;
use super::joint_enqueue::{JointEnqueue, Participation};
use super::messages::Messages;
use super::order::TurnOrder;
use super::rank_step::PreparedStep;
use super::{agreement, order};
use crate::device::{Event, ProgressFn, Queue, SyncPoint, at, go_on, go_on_meanwhile};
use crate::device_paths::device_path::{DevicePath, MessagePath};
use crate::error::{Error, Result};
use crate::memory::dtype::DType;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::transport::fingerprint::OperationKind;
use crate::transport::native::Collectives;
use crate::transport::tickets::Tickets;
use crate::transport::{
    Label, ReceiveMode, Received, Source, Tally, Ticket, Transport, TransportKind, native,
};
use crate::waiting::doorbell::Bell;
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Operation under way.
struct RunningOperation {
    ticket: Ticket,
    agreement: Agreement,
    /// `None` once it is enqueued.
    prepared: Option<PreparedStep>,
    /// Outcome of the agreement, until the operation has its turn.
    agreed: Option<Agreed>,
    /// Its place in the joint enqueue, until all ranks of this process have reached the operation, and it is enqueued.
    attendance: Option<Attendance>,
    bytes: usize,
}

/// Operation whose turn it is.
struct Attendance {
    joined: Participation,
    queue: Queue,
    /// Place in the order. The turn of the next operation comes when this is dropped.
    _place: order::TurnTicket,
}

/// Operations of one endpoint.
pub(super) struct EndpointState {
    pub(super) tickets: Tickets,
    /// Collectives.
    running: Vec<RunningOperation>,
    pub(super) messages: Messages,
    /// Queue of the operation that was enqueued last, and its end.
    last: Option<(Queue, Arc<dyn Event>)>,
}

impl EndpointState {
    /// Returns true if nothing is under way.
    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.messages.are_idle()
    }
}

/// Endpoint of one rank.
pub(super) struct IpcEndpoint {
    pub(super) transport: Rc<dyn Transport>,
    pub(super) reach: Arc<EndpointReach>,
    /// Order of the rank's operations, which all its endpoints share.
    pub(super) order: Arc<TurnOrder>,
    meeting: Arc<JointEnqueue>,
    pub(super) bell: Arc<dyn Bell>,
    pub(super) tally: Arc<Tally>,
    state: RefCell<EndpointState>,
    /// Progress of this endpoint for a thread that waits for an operation of a different endpoint, or for its GPU.
    meanwhile: OnceCell<Rc<ProgressFn>>,
}

impl IpcEndpoint {
    pub(super) fn new(
        transport: Rc<dyn Transport>,
        reach: Arc<EndpointReach>,
        meeting: Arc<JointEnqueue>,
        tally: Arc<Tally>,
    ) -> Rc<Self> {
        let order = TurnOrder::of(&reach.health);
        let bell = transport.bell();
        let messages = Messages::new(transport.size());
        let state = EndpointState { tickets: Tickets::default(), running: Vec::new(), messages, last: None };
        let state = RefCell::new(state);
        let meanwhile = OnceCell::new();
        let endpoint =
            Rc::new(IpcEndpoint { transport, reach, order, meeting, bell, tally, state, meanwhile });
        endpoint.go_on_while_waiting();
        endpoint
    }

    /// Makes this thread advance this endpoint's operations while it waits for a different endpoint, or for its GPU: the next
    /// operation in the order may be one of these, and other ranks may wait for it.
    fn go_on_while_waiting(self: &Rc<Self>) {
        let endpoint = Rc::downgrade(self);
        let work = move || {
            let Some(endpoint) = endpoint.upgrade() else { return false };
            let Ok(mut state) = endpoint.state.try_borrow_mut() else { return false };
            if state.is_idle() {
                return false;
            }
            let has_moved = endpoint.transport.progress();
            endpoint.advance(&mut state) || has_moved
        };
        go_on_meanwhile(self.meanwhile.get_or_init(|| Rc::new(work)));
    }

    /// Begins an operation.
    fn begin(
        &self,
        state: &mut EndpointState,
        ticket: Ticket,
        label: Label,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Result<()> {
        let prepared = PreparedStep::new(&self.reach, label, input, output)?;
        let agreement = Agreement::begin(&*self.transport, label, &prepared.notice)?;
        let bytes = prepared.bytes();
        let prepared = Some(prepared);
        state.running.push(RunningOperation {
            ticket,
            agreement,
            prepared,
            agreed: None,
            attendance: None,
            bytes,
        });
        Ok(())
    }

    /// Advances all operations; returns true if any made progress.
    fn advance(&self, state: &mut EndpointState) -> bool {
        let mut has_moved = false;
        let mut failed = Vec::new();
        for (at, operation) in state.running.iter_mut().enumerate() {
            match operation.agreement.advance(&*self.transport, &self.order, &self.bell) {
                Ok(None) => {}
                Ok(agreed) => {
                    let host = &*self.transport;
                    self.tally.carried_nothing(agreement::bytes_sent(host.rank(), host.size()));
                    operation.agreed = agreed;
                    has_moved = true;
                }
                Err(error) => failed.push((at, error)),
            }
        }
        for (at, error) in failed.into_iter().rev() {
            self.fail(state, at, error);
            has_moved = true;
        }
        while let Some((at, outcome)) = self.take_turns(state) {
            has_moved = true;
            if let Err(error) = outcome {
                self.fail(state, at, error);
            }
        }
        // Messages may wait for the collectives that were enqueued just now.
        let has_message_moved = self.advance_messages(state);
        self.finish(state) || has_message_moved || has_moved
    }

    /// Passes the next operation to the joint enqueue, or ends the turn of an enqueued one. Returns the operation and its
    /// outcome; `None` if it has neither moved nor ended.
    fn take_turns(&self, state: &mut EndpointState) -> Option<(usize, Result<()>)> {
        let is_next =
            |running: &RunningOperation| running.agreed.as_ref().is_some_and(|agreed| agreed.place.is_next());
        if let Some(at) = state.running.iter().position(is_next) {
            return Some((at, self.join(state, at)));
        }
        let enqueued = |(at, running): (usize, &RunningOperation)| {
            Some((at, running.attendance.as_ref()?.joined.outcome()?))
        };
        let (at, outcome) = state.running.iter().enumerate().find_map(enqueued)?;
        if let Some(turn) = state.running[at].attendance.take() {
            // Messages may have been enqueued meanwhile.
            self.follow(state, &turn.queue);
            self.note_last(state, &turn.queue);
        }
        Some((at, outcome))
    }

    fn join(&self, state: &mut EndpointState, at: usize) -> Result<()> {
        let RunningOperation { agreed, prepared, .. } = &mut state.running[at];
        let Some((Agreed { notices, place }, prepared)) = agreed.take().zip(prepared.take()) else {
            return Ok(());
        };
        // Until all is enqueued: other endpoints of this rank may be on other threads.
        place.begin();
        let queue = prepared.queue();
        self.follow(state, &queue);
        let part = prepared.part(&self.reach, &notices, &self.tally)?;
        let joined = self.meeting.join(place.number(), self.reach.rank, part, &self.bell);
        state.running[at].attendance = Some(Attendance { joined, queue, _place: place });
        Ok(())
    }

    /// Makes a queue wait for the operation that was enqueued last: words count all operations, one after another.
    pub(super) fn follow(&self, state: &EndpointState, queue: &Queue) {
        if let Some((_, end)) = state.last.as_ref().filter(|(last, _)| last != queue) {
            queue.device().inspect(|queue| at(SyncPoint::IpcTurns, || queue.wait(end)));
        }
    }

    /// Notes the end of the operation that a queue has got just now.
    pub(super) fn note_last(&self, state: &mut EndpointState, queue: &Queue) {
        state.last = queue.device().map(|device| (queue.clone(), device.record()));
    }

    /// Ends operations that are enqueued and whose notices to other ranks are sent.
    fn finish(&self, state: &mut EndpointState) -> bool {
        let EndpointState { tickets, running, .. } = state;
        let before = running.len();
        let rank = self.reach.rank;
        running.retain(|operation| {
            let is_enqueued = operation.prepared.is_none() && operation.attendance.is_none();
            let is_over = is_enqueued && operation.agreement.is_over();
            if is_over {
                tickets.finish(operation.ticket, Ok(Received { peer: rank, bytes: operation.bytes }));
            }
            !is_over
        });
        running.len() < before
    }

    fn fail(&self, state: &mut EndpointState, at: usize, error: Error) {
        let operation = state.running.remove(at);
        operation.agreement.cancel(&*self.transport);
        state.tickets.finish(operation.ticket, Err(error));
    }

    /// Accepts an operation, or the reason why it cannot begin.
    fn open(&self, begin: impl FnOnce(&mut EndpointState, Ticket) -> Result<()>) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        match begin(state, ticket) {
            Ok(()) => drop(self.advance(state)),
            Err(error) => state.tickets.finish(ticket, Err(error)),
        }
        ticket
    }
}

impl MessagePath for IpcEndpoint {
    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        self.open(|state, ticket| self.announce(state, ticket, to, label, view))
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: ReceiveMode) -> Ticket {
        self.open(|state, ticket| self.await_announcement(state, ticket, from, label, (view, land)))
    }
}

impl DevicePath for IpcEndpoint {
    fn kind(&self) -> TransportKind {
        TransportKind::Ipc
    }

    fn messages(&self) -> Option<&dyn MessagePath> {
        Some(self)
    }

    fn poll(&self, ticket: Ticket, _context: &mut Context<'_>) -> Poll<Result<Received>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        if let Some(at) = state.running.iter().position(|operation| operation.ticket == ticket) {
            state.running.remove(at).agreement.cancel(&*self.transport);
        }
        self.cancel_message(state, ticket);
        state.tickets.close(ticket);
    }

    fn progress(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let has_moved = !state.is_idle() && self.advance(&mut state);
        drop(state);
        go_on(self.meanwhile.get()) || has_moved
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        let mut state = self.state.borrow_mut();
        let running = state.running.iter().find(|operation| operation.ticket == ticket);
        let come = running.map(|operation| operation.agreement.come());
        come.unwrap_or_else(|| state.tickets.moved(ticket))
    }

    fn native(&self) -> &dyn Collectives {
        self
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, _limit: Duration) -> Result<Buffer> {
        self.reach.exports.buffer(queue, dtype, len)
    }
}

impl Collectives for IpcEndpoint {
    fn offers(&self, label: &Label, _: &[usize], _: Option<&ReadView>, _: &WriteView) -> bool {
        let is_offered = matches!(
            label.fingerprint.operation,
            OperationKind::AllReduce
                | OperationKind::ReduceScatter
                | OperationKind::AllGather
                | OperationKind::Broadcast
        );
        is_offered && label.tag.is_of_world()
    }

    fn post(&self, label: Label, _: &Arc<[usize]>, input: Option<ReadView>, output: WriteView) -> Ticket {
        let payload = native::payload(&label.fingerprint, self.transport.size(), self.transport.rank());
        self.tally.carried(payload);
        self.open(|state, ticket| self.begin(state, ticket, label, input, output))
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let state = self.state.borrow();
        let running = state.running.iter().find(|operation| operation.ticket == ticket);
        let missing = |operation: &RunningOperation| match &operation.attendance {
            Some(turn) => turn.joined.missing(),
            None => operation.agreement.missing(),
        };
        running.map_or_else(Vec::new, missing)
    }
}

impl Drop for IpcEndpoint {
    fn drop(&mut self) {
        self.state.get_mut().messages.outbox.close(&self.reach);
    }
}
