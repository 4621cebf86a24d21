//! Endpoint of one rank among GPUs that read each other's memory: operations from their post to the device's queue.

use super::agreement::{self, Agreed, Agreement};
use super::collectives::{Prepared, Reach};
use super::order::TurnOrder;
use crate::device::{Event, Queue};
use crate::doorbell::Bell;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fingerprint::OperationKind;
use crate::memory::{Buffer, ReadView, WriteView};
use crate::native::{self, Collectives};
use crate::path::DevicePath;
use crate::tickets::Tickets;
use crate::transport::{Got, Label, Land, Source, Tally, Ticket, Transport, TransportKind};
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Operation under way.
struct Running {
    ticket: Ticket,
    agreement: Agreement,
    /// `None` once it is enqueued.
    prepared: Option<Prepared>,
    /// Outcome of the agreement, until the operation has its turn.
    agreed: Option<Agreed>,
    bytes: usize,
}

/// Operations of one endpoint.
#[derive(Default)]
struct State {
    tickets: Tickets,
    running: Vec<Running>,
    /// Queue of the operation that was enqueued last, and its end.
    last: Option<(Queue, Arc<dyn Event>)>,
}

thread_local! {
    /// Endpoints of this thread: whoever waits for one may wait for another's operation.
    static ENDPOINTS: RefCell<Vec<Weak<IpcEndpoint>>> = const { RefCell::new(Vec::new()) };
}

/// Endpoint of one rank.
pub(super) struct IpcEndpoint {
    transport: Rc<dyn Transport>,
    reach: Arc<Reach>,
    /// Order of the rank's operations, which all its endpoints share.
    order: Arc<TurnOrder>,
    bell: Arc<dyn Bell>,
    tally: Arc<Tally>,
    state: RefCell<State>,
}

impl IpcEndpoint {
    pub(super) fn new(transport: Rc<dyn Transport>, reach: Arc<Reach>, tally: Arc<Tally>) -> Rc<Self> {
        let order = TurnOrder::of(&reach.health);
        let bell = transport.bell();
        let endpoint = IpcEndpoint { transport, reach, order, bell, tally, state: RefCell::default() };
        let endpoint = Rc::new(endpoint);
        ENDPOINTS.with_borrow_mut(|endpoints| {
            endpoints.retain(|endpoint| endpoint.strong_count() > 0);
            endpoints.push(Rc::downgrade(&endpoint));
        });
        endpoint
    }

    /// Begins an operation.
    fn begin(
        &self,
        state: &mut State,
        ticket: Ticket,
        label: Label,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Result<()> {
        let prepared = Prepared::new(&self.reach, label, input, output)?;
        let agreement = Agreement::begin(&*self.transport, label, &prepared.notice)?;
        let bytes = prepared.bytes();
        state.running.push(Running { ticket, agreement, prepared: Some(prepared), agreed: None, bytes });
        Ok(())
    }

    /// Advances all operations; returns true if any made progress.
    fn advance(&self, state: &mut State) -> bool {
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
        while let Some(at) = self.whose_turn(state) {
            has_moved = true;
            if let Err(error) = self.enqueue(state, at) {
                self.fail(state, at, error);
            }
        }
        self.finish(state) || has_moved
    }

    /// Returns the operation that is enqueued next, if it is known to be that.
    fn whose_turn(&self, state: &State) -> Option<usize> {
        let is_next =
            |running: &Running| running.agreed.as_ref().is_some_and(|agreed| agreed.place.is_next());
        state.running.iter().position(is_next)
    }

    /// Lets the other endpoints of this thread go on, as the operation whose turn it is may be one of theirs, and other
    /// ranks may wait for it.
    fn let_others_advance(&self) -> bool {
        let others: Vec<_> =
            ENDPOINTS.with_borrow(|endpoints| endpoints.iter().filter_map(Weak::upgrade).collect());
        let mut has_moved = false;
        for other in others.iter().filter(|other| !std::ptr::eq(&***other, self)) {
            let Ok(mut state) = other.state.try_borrow_mut() else { continue };
            if !state.running.is_empty() {
                has_moved |= other.transport.progress();
                has_moved |= other.advance(&mut state);
            }
        }
        has_moved
    }

    fn enqueue(&self, state: &mut State, at: usize) -> Result<()> {
        let Running { agreed, prepared, .. } = &mut state.running[at];
        let Some((Agreed { notices, place }, prepared)) = agreed.take().zip(prepared.take()) else {
            return Ok(());
        };
        // Until all is enqueued: others of this rank may be on other threads.
        let _place = place;
        let queue = prepared.queue();
        // Words count the steps of all operations, one after another.
        if let Some((_, end)) = state.last.take().filter(|(last, _)| *last != queue) {
            queue.device().inspect(|queue| queue.wait(&end));
        }
        prepared.enqueue(&self.reach, &notices, &self.tally)?;
        state.last = queue.device().map(|device| (queue.clone(), device.record()));
        Ok(())
    }

    /// Ends operations that are enqueued and have told others all that they need.
    fn finish(&self, state: &mut State) -> bool {
        let State { tickets, running, .. } = state;
        let before = running.len();
        let rank = self.reach.rank;
        running.retain(|operation| {
            let is_over = operation.prepared.is_none() && operation.agreement.is_over();
            if is_over {
                tickets.finish(operation.ticket, Ok(Got { peer: rank, bytes: operation.bytes }));
            }
            !is_over
        });
        running.len() < before
    }

    fn fail(&self, state: &mut State, at: usize, error: Error) {
        let operation = state.running.remove(at);
        operation.agreement.cancel(&*self.transport);
        state.tickets.finish(operation.ticket, Err(error));
    }

    /// Returns the ticket of a message, which this path does not carry.
    fn refuse(&self) -> Ticket {
        let tickets = &mut self.state.borrow_mut().tickets;
        let ticket = tickets.open();
        let error = Error::usage("the path ipc carries no single messages", "let them be staged");
        tickets.finish(ticket, Err(error));
        ticket
    }
}

impl DevicePath for IpcEndpoint {
    fn kind(&self) -> TransportKind {
        TransportKind::Ipc
    }

    fn carries_messages(&self) -> bool {
        false
    }

    fn in_order(&self) -> bool {
        false
    }

    fn post_send(&self, _to: usize, _label: Label, _view: ReadView) -> Ticket {
        self.refuse()
    }

    fn post_recv(&self, _from: Source, _label: Label, _view: WriteView, _land: Land) -> Ticket {
        self.refuse()
    }

    fn poll(&self, ticket: Ticket, _context: &mut Context<'_>) -> Poll<Result<Got>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        if let Some(at) = state.running.iter().position(|operation| operation.ticket == ticket) {
            state.running.remove(at).agreement.cancel(&*self.transport);
        }
        state.tickets.close(ticket);
    }

    fn progress(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let has_moved = !state.running.is_empty() && self.advance(&mut state);
        drop(state);
        self.let_others_advance() || has_moved
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        let state = self.state.borrow();
        let running = state.running.iter().find(|operation| operation.ticket == ticket);
        running.map_or(0, |operation| operation.agreement.come())
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let state = self.state.borrow();
        let running = state.running.iter().find(|operation| operation.ticket == ticket);
        running.map_or_else(Vec::new, |operation| operation.agreement.missing())
    }

    fn native(&self) -> &dyn Collectives {
        self
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, _limit: Duration) -> Result<Buffer> {
        self.reach.exports.buffer(queue, dtype, len)
    }
}

impl Collectives for IpcEndpoint {
    fn offers(&self, label: &Label, _input: Option<&ReadView>, _output: &WriteView) -> bool {
        let is_offered = matches!(
            label.fingerprint.operation,
            OperationKind::AllReduce
                | OperationKind::ReduceScatter
                | OperationKind::AllGather
                | OperationKind::Broadcast
        );
        is_offered && label.tag.is_of_world()
    }

    fn post(&self, label: Label, input: Option<ReadView>, output: WriteView) -> Ticket {
        let payload = native::payload(&label.fingerprint, self.transport.size(), self.transport.rank());
        self.tally.carried(payload);
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        match self.begin(state, ticket, label, input, output) {
            Ok(()) => drop(self.advance(state)),
            Err(error) => state.tickets.finish(ticket, Err(error)),
        }
        ticket
    }
}
