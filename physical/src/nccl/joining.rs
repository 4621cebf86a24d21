//! Joining: how the ranks of a split group get a communicator of NCCL's, when the first of its collectives has its
//! turn.
//!
//! The collective is the next on all its ranks then, which come here one by one and keep their turn until NCCL has
//! connected them. The first of them draws the communicator's name and mails it. NCCL allocates memory and loads code,
//! for which the driver may wait until the GPU has nothing to do: so all of NCCL's work that the GPU has is done before
//! NCCL is called. Other work of the GPU is taken to end by itself, without other ranks. The host is not held up, as others
//! may need its mail to get there.
//!
//! Until the name is known, later collectives of the same lane that NCCL carries out do not begin: their mail would say that
//! it never comes.
//!
//! Groups of the same ranks in the same order share a communicator, which lives as long as the endpoint.

use super::batch::BatchWork;
use super::communicator;
use super::endpoint::{NcclPath, NcclState};
use super::library::{Libnccl, UniqueId};
use super::link::Link;
use super::members::Members;
use super::operation::{NcclOperation, NcclStage};
use crate::device::Event;
use crate::error::{During, Error, Result};
use crate::path::mail::Mail;
use crate::runtime;
use crate::stopwatch::Stopwatch;
use crate::transport::{Label, Source, Ticket, Transport};
use std::sync::Arc;

/// Step of the mail with the name of a communicator, beyond the steps of any operation and of the agreement.
const NAME: usize = 0xfff0;

/// A communicator of NCCL's among the ranks of a group.
pub(super) struct GroupLink {
    members: Members,
    pub(super) link: Arc<Link>,
}

/// A collective whose ranks are being connected.
pub(super) struct Joining {
    work: BatchWork,
    /// Events after the work of NCCL's that the GPU has.
    ahead: Vec<Arc<dyn Event>>,
    name: Name,
    /// Communicator that NCCL is connecting.
    link: Option<Arc<Link>>,
    /// Time since nothing is ahead.
    waited: Option<Stopwatch>,
}

/// Name of a communicator.
enum Name {
    /// Drawn by this rank.
    Drawn(UniqueId),
    /// To come from the group's first rank.
    Mailed(Mail),
}

impl Joining {
    /// Returns true if NCCL is at it, which tells nobody when it is done.
    pub(super) fn is_at_work(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the ticket of the collective.
    pub(super) fn ticket(&self) -> Ticket {
        self.work.ticket()
    }

    /// Returns the ranks for which it waits: this one's device, or the rank that mails the name. Once NCCL is at it, nobody
    /// is known: others may have been connected long ago, and be over it.
    pub(super) fn awaited(&self) -> Vec<usize> {
        let members = self.work.members();
        let own = members.ranks()[members.place()];
        match &self.name {
            _ if self.link.is_some() => Vec::new(),
            Name::Mailed(_) if self.nothing_is_ahead() => {
                members.ranks().first().copied().into_iter().collect()
            }
            _ => vec![own],
        }
    }

    /// Returns true once nothing of NCCL's is ahead of it.
    fn nothing_is_ahead(&self) -> bool {
        self.ahead.iter().all(|event| event.has_happened())
    }

    /// Gives up what this rank expects.
    pub(super) fn cancel(self, host: &dyn Transport) {
        if let Name::Mailed(mail) = &self.name {
            mail.cancel(host);
        }
    }

    /// Returns the name, once it is known.
    fn name(&self, host: &dyn Transport) -> Result<Option<UniqueId>> {
        let mail = match &self.name {
            Name::Drawn(id) => return Ok(Some(*id)),
            Name::Mailed(mail) => mail,
        };
        Ok(mail.take(host)?.map(|(_, numbers)| UniqueId::from_numbers(numbers)))
    }
}

impl NcclPath {
    /// Returns the communicator of these ranks; `None` if NCCL has not connected them.
    pub(super) fn link_of(&self, groups: &[GroupLink], members: &Members) -> Option<Arc<Link>> {
        if members.ranks() == self.world.ranks() {
            return Some(Arc::clone(&self.link));
        }
        let found = groups.iter().find(|group| group.members.ranks() == members.ranks())?;
        Some(Arc::clone(&found.link))
    }

    /// Returns true if an operation has its place in the order, but its ranks may have to be connected before.
    pub(super) fn may_have_to_join(&self, state: &NcclState, operation: &NcclOperation) -> bool {
        let is_settled = matches!(operation.stage, NcclStage::Settled);
        is_settled && self.link_of(&state.groups, &operation.members).is_none()
    }

    /// Begins to connect the ranks of a collective whose turn it is.
    pub(super) fn begin_to_join(&self, state: &mut NcclState, work: BatchWork) -> Result<Joining> {
        let bell = self.host.bell();
        let ahead: Vec<_> = [Some(self.stream()?.record()), self.order.last_of_others(self.owner)]
            .into_iter()
            .flatten()
            .collect();
        ahead.iter().for_each(|event| event.ring(Arc::clone(&bell)));
        let label = work.label();
        let label = Label { tag: label.tag.at_step(NAME)?, ..label };
        let [first, others @ ..] = work.members().ranks() else {
            return Err(Error::usage("a group has no ranks", "report this defect of the path"));
        };
        let name = if work.members().place() > 0 {
            Name::Mailed(Mail::expect(&*self.host, Source::Rank(*first), label, UniqueId::NUMBERS)?)
        } else {
            let id = communicator::draw(Libnccl::get()?)?;
            let numbers = id.to_numbers();
            let sent: Vec<Ticket> =
                others.iter().map(|to| self.tell(*to, label, &numbers)).collect::<Result<_>>()?;
            if let Some(operation) = state.operation(work.ticket()) {
                operation.sent.extend(sent);
            }
            Name::Drawn(id)
        };
        Ok(Joining { work, ahead, name, link: None, waited: None })
    }

    /// Goes on with it as far as that does not wait. Returns the collective once NCCL has connected its ranks.
    pub(super) fn go_on_joining(&self, state: &mut NcclState) -> Result<Option<BatchWork>> {
        let NcclState { joining, groups, .. } = state;
        let Some(at) = joining else { return Ok(None) };
        self.check_joining(at)?;
        if at.link.is_none() {
            if !at.nothing_is_ahead() {
                return Ok(None);
            }
            at.waited.get_or_insert_with(Stopwatch::start);
            let Some(id) = at.name(&*self.host)? else { return Ok(None) };
            let members = at.work.members().clone();
            let comm =
                communicator::begin(Libnccl::get()?, &self.queue, (members.place(), members.count()), id)?;
            let link = Arc::new(self.link.beside(comm));
            groups.push(GroupLink { members, link: Arc::clone(&link) });
            at.link = Some(link);
        }
        if !at.link.as_ref().map_or(Ok(false), |link| link.is_free("connect the ranks of a group by NCCL"))? {
            // NCCL is at it on a thread of its own.
            runtime::yield_now();
            return Ok(None);
        }
        Ok(joining.take().map(|joining| joining.work))
    }

    /// Fails once that cannot be any more.
    fn check_joining(&self, joining: &mut Joining) -> Result<()> {
        let label = joining.work.label();
        let during = During::Operation(label.fingerprint, label.tag);
        let health = self.host.health();
        if let Some(verdict) = health.verdict() {
            return Err(verdict.error(during));
        }
        let after = self.link.limit();
        if joining.waited.as_mut().is_none_or(|waited| waited.elapsed() <= after) {
            return Ok(());
        }
        Err(Error::Deadline { waiting_for: None, stragglers: health.stragglers(&label), after, during })
    }
}
