//! The queue: collectives of an endpoint, in the order in which the program calls them, until they are on the stream.
//!
//! Only the first one advances. So each rank enqueues its collectives, those of all its groups, in the order of its calls. As in
//! PyTorch, the program calls them in the same order on all ranks. Where it does not, ranks wait for each other in the
//! [comparison](super::comparison), which ends at the deadline, and no GPU waits.

use super::communicator::{UNKNOWN, begin};
use super::comparison::{Compared, Comparison};
use super::endpoint::{NcclPath, NcclState};
use super::launch::NcclLaunch;
use super::link::SharedCommunicator;
use super::members::GroupMembers;
use crate::error::{Error, Result};
use crate::memory::{ReadView, Span, WriteView};
use crate::runtime;
use crate::transport::{Label, Ticket, Transport};
use std::sync::Arc;

/// A collective that has not ended.
pub(super) struct NcclOperation {
    pub(super) ticket: Ticket,
    pub(super) label: Label,
    pub(super) members: GroupMembers,
    /// Control messages of this rank that have not been sent.
    pub(super) sent: Vec<Ticket>,
    /// `None` if it works in place.
    pub(super) input: Option<ReadView>,
    pub(super) output: WriteView,
    pub(super) stage: CollectiveStage,
}

/// Progress of a collective.
pub(super) enum CollectiveStage {
    Queued,
    /// Its ranks compare their calls.
    Comparing(Comparison),
    /// NCCL connects its ranks.
    Connecting(Arc<SharedCommunicator>),
    /// NCCL enqueues it.
    Enqueuing(NcclLaunch),
    Enqueued,
}

/// Outcome of a check of the first collective.
pub(super) enum CollectiveStep {
    /// It waits for a control message.
    Waits,
    /// It waits for NCCL, which rings no bell.
    Busy,
    Moved,
    /// It is on the stream.
    Enqueued,
    /// Its ranks disagree.
    Refused(Error),
}

/// Communicator of a group.
pub(super) struct GroupLink {
    members: GroupMembers,
    pub(super) link: Arc<SharedCommunicator>,
}

impl NcclOperation {
    /// Returns the memory that it reads, and the memory that it writes.
    pub(super) fn spans(&self) -> (Span, Span) {
        let to = self.output.span();
        (self.input.as_ref().map_or_else(|| to.clone(), ReadView::span), to)
    }

    /// Returns true if NCCL has started it, so that it cannot be cancelled.
    pub(super) fn is_at_nccl(&self) -> bool {
        matches!(self.stage, CollectiveStage::Connecting(_) | CollectiveStage::Enqueuing(_))
    }

    /// Returns the rank whose control message it waits for, if it does.
    pub(super) fn awaited(&self) -> Option<usize> {
        let CollectiveStage::Comparing(comparison) = &self.stage else { return None };
        Some(self.members.before(comparison.round()))
    }

    /// Abandons its control messages.
    pub(super) fn cancel(&self, host: &dyn Transport) {
        if let CollectiveStage::Comparing(comparison) = &self.stage {
            comparison.cancel(host);
        }
        self.sent.iter().for_each(|sent| host.cancel(*sent));
    }

    /// Makes the communicator keep the memory of the collective that NCCL enqueues, when the communicator is ended.
    pub(super) fn let_go(self) {
        if let CollectiveStage::Enqueuing(launch) = &self.stage {
            let (from, to) = self.spans();
            launch.link.keep(vec![from, to]);
        }
    }
}

impl NcclPath {
    /// Advances the first collective of the queue by one stage, if nothing keeps it waiting.
    ///
    /// # Errors
    /// Failures of NCCL or the driver, which end all communicators of the endpoint.
    pub(super) fn step(&self, state: &mut NcclState, head: &mut NcclOperation) -> Result<CollectiveStep> {
        match &head.stage {
            CollectiveStage::Queued => {
                let are_connected = self.link_of(&state.groups, &head.members).is_some();
                let compared = self.compare(head, are_connected);
                self.proceed(state, head, compared)
            }
            CollectiveStage::Comparing(at) => {
                let next = at.round() + 1;
                match at.heard(&*self.host) {
                    Ok(None) => Ok(CollectiveStep::Waits),
                    Ok(Some(name)) => {
                        let compared = self.compare_from(head, next, name);
                        self.proceed(state, head, compared)
                    }
                    Err(error) => Ok(CollectiveStep::Refused(error)),
                }
            }
            CollectiveStage::Connecting(link) if link.is_free("connect the ranks of a group by NCCL")? => {
                let link = Arc::clone(link);
                self.launch(head, link)
            }
            CollectiveStage::Enqueuing(launch) if launch.link.is_free("let NCCL communicate")? => {
                let flight = launch.flight();
                self.complete(head, &flight)?;
                head.stage = CollectiveStage::Enqueued;
                Ok(CollectiveStep::Enqueued)
            }
            CollectiveStage::Connecting(_) | CollectiveStage::Enqueuing(_) => {
                // NCCL works on it on its own thread.
                runtime::yield_now();
                Ok(CollectiveStep::Busy)
            }
            CollectiveStage::Enqueued => Ok(CollectiveStep::Enqueued),
        }
    }

    /// Continues with the next round of the comparison; passes a collective to NCCL once the ranks agree on it, or first makes
    /// NCCL connect them.
    fn proceed(
        &self,
        state: &mut NcclState,
        head: &mut NcclOperation,
        compared: Result<Compared>,
    ) -> Result<CollectiveStep> {
        state.tickets.advance(head.ticket, 1);
        let name = match compared {
            // With this error, the caller ends the work of the other collectives.
            Err(error) => return Ok(CollectiveStep::Refused(error)),
            Ok(Compared::Next(comparison)) => {
                head.stage = CollectiveStage::Comparing(comparison);
                return Ok(CollectiveStep::Moved);
            }
            Ok(Compared::Over(name)) => name,
        };
        let members = &head.members;
        if let Some(link) = self.link_of(&state.groups, members) {
            return self.launch(head, link);
        }
        let place = (members.place(), members.count());
        let id = name.unwrap_or(UNKNOWN);
        let comm = begin(&self.queue, place, id)?;
        let link = Arc::new(self.link.same_endpoint(comm));
        state.groups.push(GroupLink { members: members.clone(), link: Arc::clone(&link) });
        head.stage = CollectiveStage::Connecting(link);
        Ok(CollectiveStep::Moved)
    }

    fn launch(&self, head: &mut NcclOperation, link: Arc<SharedCommunicator>) -> Result<CollectiveStep> {
        let launch = self.prepare(head, Arc::clone(&link))?;
        // Set before the call: NCCL may have begun an operation that it then refuses.
        head.stage = CollectiveStage::Enqueuing(launch);
        self.hand_over(head, &link)?;
        Ok(CollectiveStep::Moved)
    }

    /// Returns the communicator of these ranks; `None` if NCCL has not connected them.
    fn link_of(&self, groups: &[GroupLink], members: &GroupMembers) -> Option<Arc<SharedCommunicator>> {
        if members.ranks() == self.world.ranks() {
            return Some(Arc::clone(&self.link));
        }
        let found = groups.iter().find(|group| group.members.ranks() == members.ranks())?;
        Some(Arc::clone(&found.link))
    }
}
