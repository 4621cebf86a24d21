//! The path of one endpoint: its operations from the post to the stream.
//!
//! Each operation agrees with the other ranks, by [mail](crate::path::mail) of the host's transport, on what is to be done and
//! when; then its turn comes, and it is enqueued; and then it is over.

use super::batch::Batch;
use super::ending::FAREWELL;
use super::group::Connected;
use super::joining::{GroupLink, Joining};
use super::link::{self, Link};
use super::members::Members;
use super::operation::{NcclOperation, NcclStage};
use super::order::WorkOrder;
use crate::device::{Meanwhile, go_on_meanwhile};
use crate::error::{Error, Result};
use crate::memory::{Buffer, ReadView, WriteView};
use crate::native::Collectives;
use crate::path::mail::Mail;
use crate::path::{DevicePath, mail};
use crate::transport::{Got, Label, Land, Source, Tally, Ticket, Tickets, Transport, TransportKind};
use crate::{DType, Queue};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// State of an endpoint's path.
#[derive(Default)]
pub(super) struct NcclState {
    pub(super) tickets: Tickets,
    pub(super) operations: Vec<NcclOperation>,
    /// Replies and decisions that are to come, with the rank that sends them.
    pub(super) controls: Vec<(usize, Mail)>,
    /// Ways of messages that NCCL has connected.
    pub(super) connected: Connected,
    /// Number of messages to each rank so far.
    pub(super) numbers: Vec<u64>,
    /// Work that NCCL is enqueuing.
    pub(super) batch: Option<Batch>,
    /// Collective that has its turn, while NCCL connects its ranks.
    pub(super) joining: Option<Joining>,
    /// Communicators of split groups.
    pub(super) groups: Vec<GroupLink>,
    /// Memory for what is received before it is reduced, and not in use.
    pub(super) scratch: Vec<Buffer>,
}

impl NcclState {
    /// Returns an operation that is not over.
    pub(super) fn operation(&mut self, ticket: Ticket) -> Option<&mut NcclOperation> {
        self.operations.iter_mut().find(|operation| operation.ticket == ticket)
    }
}

/// An endpoint's path through NCCL.
pub(super) struct NcclPath {
    pub(super) host: Rc<dyn Transport>,
    /// Communicator of all ranks.
    pub(super) link: Arc<Link>,
    pub(super) world: Members,
    /// Number of the communicator, equal on all ranks.
    pub(super) communicator: u64,
    /// Queue on which NCCL enqueues.
    pub(super) queue: Queue,
    pub(super) order: Arc<WorkOrder>,
    /// Number of this endpoint in the order.
    pub(super) owner: u64,
    pub(super) tally: Arc<Tally>,
    pub(super) state: RefCell<NcclState>,
    /// Progress of this path for a thread that waits for its GPU.
    pub(super) meanwhile: OnceCell<Rc<Meanwhile>>,
}

impl NcclPath {
    /// Lets this thread go on with the agreements of this path when it waits for its GPU: that may wait for another one,
    /// whose rank waits for mail of this one about something else.
    pub(super) fn go_on_while_waiting(self: &Rc<Self>) {
        let path = Rc::downgrade(self);
        let work = move || {
            let Some(path) = path.upgrade() else { return false };
            let has_moved = path.host.progress();
            let mut state = path.state.try_borrow_mut();
            state.as_mut().is_ok_and(|state| path.advance(state)) || has_moved
        };
        go_on_meanwhile(self.meanwhile.get_or_init(|| Rc::new(work)));
    }

    /// Takes an operation in, or the reason why it cannot begin.
    pub(super) fn open(
        &self,
        state: &mut NcclState,
        begin: impl FnOnce(&mut NcclState, Ticket) -> Result<NcclOperation>,
    ) -> Ticket {
        let ticket = state.tickets.open();
        let begun = self.link.failure().cloned().map_or(Ok(()), Err);
        match begun.and_then(|()| begin(state, ticket)) {
            Ok(operation) => {
                state.operations.push(operation);
                self.advance(state);
            }
            Err(error) => state.tickets.finish(ticket, Err(error)),
        }
        ticket
    }

    /// Sends mail to a rank.
    ///
    /// # Errors
    /// [`Error::System`] if memory runs out.
    pub(super) fn tell(&self, to: usize, label: Label, numbers: &[u64]) -> Result<Ticket> {
        mail::post(&*self.host, &self.tally, to, label, numbers)
    }

    /// Advances all operations; returns true if any has moved, or NCCL is at work.
    fn advance(&self, state: &mut NcclState) -> bool {
        if state.operations.is_empty() && state.batch.is_none() && state.joining.is_none() {
            return false;
        }
        let advanced = self.try_advance(state);
        let failure = self.link.failure().cloned();
        if let Some(error) = failure.or(advanced.as_ref().err().cloned()) {
            self.fail(state, &error);
            return true;
        }
        advanced.unwrap_or(true)
    }

    fn try_advance(&self, state: &mut NcclState) -> Result<bool> {
        let mut moved = self.read_controls(state)?;
        let mut operations = std::mem::take(&mut state.operations);
        let mut lanes = Vec::new();
        operations.retain_mut(|operation| {
            let outcome = match operation.stage {
                NcclStage::Expecting(_) => self.answer(state, operation),
                NcclStage::Queued | NcclStage::Agreeing { .. } => self.agree(state, operation, &mut lanes),
                _ => Ok(false),
            };
            if self.may_have_to_join(state, operation) {
                lanes.push(operation.label.tag.series());
            }
            moved |= !matches!(outcome, Ok(false));
            // Ranks that disagree are the failure of one operation, with which its caller ends the others.
            let failure = outcome.err();
            let goes_on = failure.is_none();
            if !goes_on {
                self.order.withdraw(operation.identity);
            }
            failure.into_iter().for_each(|error| state.tickets.finish(operation.ticket, Err(error)));
            goes_on
        });
        state.operations = operations;
        moved |= self.enqueue(state)?;
        Ok(self.finish(state)? || moved)
    }

    /// Ends the operations that are on the stream and have told the other ranks all that they need.
    fn finish(&self, state: &mut NcclState) -> Result<bool> {
        let mut moved = false;
        let NcclState { tickets, operations, .. } = state;
        let mut failed = Ok(());
        operations.retain_mut(|operation| {
            operation.sent.retain(|sent| match mail::is_sent(&*self.host, *sent) {
                Ok(is_sent) => {
                    moved |= is_sent;
                    !is_sent
                }
                Err(error) => {
                    failed = Err(error);
                    false
                }
            });
            let is_over = matches!(operation.stage, NcclStage::Enqueued) && operation.sent.is_empty();
            if is_over {
                tickets.finish(operation.ticket, Ok(operation.got));
            }
            !is_over
        });
        failed.map(|()| moved)
    }

    /// Ends all operations with an error.
    fn fail(&self, state: &mut NcclState, error: &Error) {
        self.links(&state.groups).for_each(|link| link.fail(error));
        self.order.leave(self.owner);
        for operation in state.operations.drain(..) {
            state.tickets.finish(operation.ticket, Err(error.clone()));
        }
        state.controls.drain(..).for_each(|(_, mail)| mail.cancel(&*self.host));
        state.batch.take().into_iter().for_each(Batch::let_go);
        state.joining.take().into_iter().for_each(|joining| joining.cancel(&*self.host));
    }

    /// Returns the communicators of this endpoint.
    fn links<'a>(&'a self, groups: &'a [GroupLink]) -> impl Iterator<Item = &'a Link> + Clone {
        std::iter::once(&*self.link).chain(groups.iter().map(|group| &*group.link))
    }
}

impl DevicePath for NcclPath {
    fn kind(&self) -> TransportKind {
        TransportKind::Nccl
    }

    fn post_send(&self, to: usize, label: Label, view: ReadView) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        self.open(state, |state, ticket| self.announce(state, ticket, to, label, view))
    }

    fn post_recv(&self, from: Source, label: Label, view: WriteView, land: Land) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        self.open(state, |_, ticket| self.await_announcement(ticket, from, label, view, land))
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Got>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        state.tickets.close(ticket);
        let Some(at) = state.operations.iter().position(|operation| operation.ticket == ticket) else {
            return;
        };
        let operation = state.operations.remove(at);
        if let NcclStage::Expecting(mail) | NcclStage::Agreeing { mail, .. } = &operation.stage {
            mail.cancel(&*self.host);
        }
        operation.sent.iter().for_each(|sent| self.host.cancel(*sent));
        self.order.withdraw(operation.identity);
    }

    fn progress(&self) -> bool {
        self.advance(&mut self.state.borrow_mut())
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        self.state.borrow_mut().tickets.moved(ticket)
    }

    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let mut state = self.state.borrow_mut();
        if let Some(joining) = state.joining.as_ref().filter(|joining| joining.ticket() == ticket) {
            return joining.awaited();
        }
        state.operation(ticket).and_then(|operation| self.awaited(operation)).into_iter().collect()
    }

    fn native(&self) -> &dyn Collectives {
        self
    }

    fn register(&self, queue: &Queue, dtype: DType, len: usize, _limit: Duration) -> Result<Buffer> {
        Buffer::zeroed_on(queue, dtype, len)
    }
}

impl Drop for NcclPath {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        if state.batch.is_some() || state.joining.is_some() {
            let error = Error::usage("an endpoint was closed in an operation", "await every operation");
            self.fail(&mut state, &error);
            return link::wait_for_ends(self.links(&state.groups), FAREWELL);
        }
        self.order.leave(self.owner);
        link::close(self.links(&state.groups), FAREWELL);
    }
}
