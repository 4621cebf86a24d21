//! The path of one endpoint, from the post of a collective to the stream.

use super::link;
use super::link::SharedCommunicator;
use super::members::GroupMembers;
use super::queue::{CollectiveStep, GroupLink, NcclOperation};
use super::teardown::FAREWELL;
use crate::device::{ProgressFn, go_on_meanwhile};
use crate::device_paths::device_path::{DevicePath, MessagePath, control_message};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::transport::native::Collectives;
use crate::transport::{Received, Tally, Ticket, Tickets, Transport, TransportKind};
use crate::{DType, Queue};
use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// State of an endpoint's path.
#[derive(Default)]
pub(super) struct NcclState {
    pub(super) tickets: Tickets,
    /// Collectives that are not on the stream, in the order of their calls.
    pub(super) queue: VecDeque<NcclOperation>,
    /// Collectives on the stream whose control messages have not all been sent.
    enqueued: Vec<NcclOperation>,
    /// Communicators of split groups.
    pub(super) groups: Vec<GroupLink>,
}

/// An endpoint's path through NCCL.
pub(super) struct NcclPath {
    pub(super) host: Rc<dyn Transport>,
    /// Communicator of all ranks.
    pub(super) link: Arc<SharedCommunicator>,
    pub(super) world: GroupMembers,
    /// Queue on which NCCL enqueues.
    pub(super) queue: Queue,
    pub(super) tally: Arc<Tally>,
    pub(super) state: RefCell<NcclState>,
    /// Progress of this path for a thread that waits for its GPU.
    pub(super) meanwhile: OnceCell<Rc<ProgressFn>>,
}

impl NcclPath {
    /// Makes this thread advance the collectives of this path while it waits for its GPU. The GPU may wait for a GPU of a rank
    /// that waits for a control message of this rank about a different collective.
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

    /// Accepts a collective, or the reason why it cannot begin.
    pub(super) fn open(&self, begin: impl FnOnce(Ticket) -> Result<NcclOperation>) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        let ticket = state.tickets.open();
        let begun = self.link.failure().cloned().map_or(Ok(()), Err);
        match begun.and_then(|()| begin(ticket)) {
            Ok(operation) => {
                state.queue.push_back(operation);
                self.advance(state);
            }
            Err(error) => state.tickets.finish(ticket, Err(error)),
        }
        ticket
    }

    /// Advances the queue; returns true if it has moved, or NCCL is at work.
    fn advance(&self, state: &mut NcclState) -> bool {
        if state.queue.is_empty() && state.enqueued.is_empty() {
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
        let mut moved = false;
        while let Some(mut head) = state.queue.pop_front() {
            let step = self.step(state, &mut head);
            moved |= !matches!(step, Ok(CollectiveStep::Waits));
            match step {
                Ok(CollectiveStep::Moved) => state.queue.push_front(head),
                Ok(CollectiveStep::Enqueued) => state.enqueued.push(head),
                Ok(CollectiveStep::Refused(error)) => state.tickets.finish(head.ticket, Err(error)),
                Ok(CollectiveStep::Waits | CollectiveStep::Busy) => {
                    state.queue.push_front(head);
                    break;
                }
                Err(error) => {
                    state.queue.push_front(head);
                    return Err(error);
                }
            }
        }
        Ok(self.finish(state)? || moved)
    }

    /// Ends the collectives that are on the stream and whose control messages are sent.
    fn finish(&self, state: &mut NcclState) -> Result<bool> {
        let mut moved = false;
        let NcclState { tickets, enqueued, .. } = state;
        let mut failed = Ok(());
        enqueued.retain_mut(|operation| {
            operation.sent.retain(|sent| match control_message::is_sent(&*self.host, *sent) {
                Ok(is_sent) => !is_sent,
                Err(error) => {
                    failed = Err(error);
                    false
                }
            });
            let is_over = operation.sent.is_empty();
            if is_over {
                moved = true;
                let got = Received { peer: self.host.rank(), bytes: operation.output.byte_len() };
                tickets.finish(operation.ticket, Ok(got));
            }
            !is_over
        });
        failed.map(|()| moved)
    }

    /// Ends all collectives with an error.
    fn fail(&self, state: &mut NcclState, error: &Error) {
        self.links(&state.groups).for_each(|link| link.fail(error));
        for operation in state.queue.drain(..).chain(state.enqueued.drain(..)) {
            state.tickets.finish(operation.ticket, Err(error.clone()));
            operation.cancel(&*self.host);
            operation.let_go();
        }
    }

    /// Returns the communicators of this endpoint.
    fn links<'a>(&'a self, groups: &'a [GroupLink]) -> impl Iterator<Item = &'a SharedCommunicator> + Clone {
        std::iter::once(&*self.link).chain(groups.iter().map(|group| &*group.link))
    }
}

impl DevicePath for NcclPath {
    fn kind(&self) -> TransportKind {
        TransportKind::Nccl
    }

    fn messages(&self) -> Option<&dyn MessagePath> {
        None
    }

    fn poll(&self, ticket: Ticket, _: &mut Context<'_>) -> Poll<Result<Received>> {
        self.state.borrow_mut().tickets.poll(ticket)
    }

    fn cancel(&self, ticket: Ticket) {
        let state = &mut *self.state.borrow_mut();
        state.tickets.close(ticket);
        // NCCL continues with the enqueued collectives.
        let is_it = |operation: &NcclOperation| operation.ticket == ticket && !operation.is_at_nccl();
        if let Some(operation) = state.queue.iter().position(is_it).and_then(|at| state.queue.remove(at)) {
            operation.cancel(&*self.host);
        }
    }

    fn progress(&self) -> bool {
        self.advance(&mut self.state.borrow_mut())
    }

    fn moved(&self, ticket: Ticket) -> u64 {
        self.state.borrow_mut().tickets.moved(ticket)
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
        if state.queue.iter().any(NcclOperation::is_at_nccl) {
            let error = Error::usage("an endpoint was closed during an operation", "await every operation");
            self.fail(&mut state, &error);
            return link::wait_for_ends(self.links(&state.groups), FAREWELL);
        }
        link::close(self.links(&state.groups), FAREWELL);
    }
}
