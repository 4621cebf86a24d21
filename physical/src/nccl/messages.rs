//! Messages by NCCL, whose sends and receives have no tags: the ranks of each agree on its place among all others.
//!
//! ```text
//! sender                          receiver
//! announcement: size, number  ->                       under the message's own label, and compared there
//!                             <-  reply: time          once the receive is posted
//! decision: time              ->
//! ncclSend                        ncclRecv             when their turn comes
//! ```
//!
//! Arrivals and proposals of [collectives](super::collectives) are mail, too, under labels of theirs.
//!
//! So a message has the size that its sender knows, receives may be posted long before and in any order, and a message
//! that nobody wants holds no stream.

use super::endpoint::{NcclPath, NcclState};
use super::operation::{NcclOperation, NcclStage, NcclWork};
use super::order::Identity;
use crate::error::Result;
use crate::memory::{ReadView, WriteView};
use crate::path::mail::{self, Mail};
use crate::transport::{Got, Label, Land, Source, Ticket};

/// Numbers of a reply, and of a decision: which it is, the number of the message, and a time.
const CONTROL: usize = 3;
/// First number of a reply.
const REPLY: u64 = 0;
/// First number of a decision.
const DECISION: u64 = 1;

/// Side of a message, in the identity of an item: those of a message to oneself are two.
#[derive(Clone, Copy)]
enum Side {
    Sender,
    Receiver,
}

/// Returns the label of replies and decisions.
fn control_label() -> Result<Label> {
    mail::label(0, CONTROL)
}

impl NcclPath {
    fn message(&self, from: usize, to: usize, number: u64, side: Side) -> Identity {
        [self.communicator, (from as u64) << 32 | to as u64, number, side as u64]
    }

    /// Announces a message to its receiver.
    pub(super) fn announce(
        &self,
        state: &mut NcclState,
        ticket: Ticket,
        to: usize,
        label: Label,
        view: ReadView,
    ) -> Result<NcclOperation> {
        let bytes = view.byte_len();
        let number = state.numbers[to];
        state.numbers[to] += 1;
        let sent = vec![self.tell(to, label, &[bytes as u64, number])?];
        let reply = Mail::expect(&*self.host, Source::Rank(to), control_label()?, CONTROL)?;
        state.controls.push((to, reply));
        Ok(NcclOperation {
            ticket,
            label,
            members: self.world.clone(),
            identity: self.message(self.host.rank(), to, number, Side::Sender),
            sent,
            work: Some(NcclWork::Send { to, view }),
            stage: NcclStage::Announced,
            got: Got { peer: to, bytes },
        })
    }

    /// Expects the announcement of a message.
    pub(super) fn await_announcement(
        &self,
        ticket: Ticket,
        from: Source,
        label: Label,
        view: WriteView,
        land: Land,
    ) -> Result<NcclOperation> {
        let announcement = Mail::expect(&*self.host, from, label, 2)?;
        let peer = match from {
            Source::Rank(peer) => peer,
            Source::Any => self.host.rank(),
        };
        Ok(NcclOperation {
            ticket,
            label,
            members: self.world.clone(),
            identity: Identity::default(),
            sent: Vec::new(),
            work: Some(NcclWork::Receive { view, land }),
            stage: NcclStage::Expecting(announcement),
            got: Got { peer, bytes: 0 },
        })
    }

    /// Replies to the announcement of a message, once that has come.
    pub(super) fn answer(&self, state: &mut NcclState, operation: &mut NcclOperation) -> Result<bool> {
        let NcclStage::Expecting(announcement) = &operation.stage else { return Ok(false) };
        let Some((from, [bytes, number])) = announcement.take(&*self.host)? else { return Ok(false) };
        let Some(NcclWork::Receive { view, land }) = &operation.work else { return Ok(false) };
        let room = view.byte_len();
        let fits = if *land == Land::AtMost { bytes <= room as u64 } else { bytes == room as u64 };
        if !fits {
            let peer = self.host.health().peers()[from].clone();
            return Err(operation.label.wrong_size(bytes, room, peer));
        }
        operation.got = Got { peer: from, bytes: bytes as usize };
        operation.identity = self.message(from, self.host.rank(), number, Side::Receiver);
        let time = self.order.propose(operation.identity, self.owner);
        operation.sent.push(self.tell(from, control_label()?, &[REPLY, number, time])?);
        let decision = Mail::expect(&*self.host, Source::Rank(from), control_label()?, CONTROL)?;
        state.controls.push((from, decision));
        operation.stage = NcclStage::Replied;
        state.tickets.advance(operation.ticket, CONTROL);
        Ok(true)
    }

    /// Takes replies and decisions that have come. Returns true if there were any.
    pub(super) fn read_controls(&self, state: &mut NcclState) -> Result<bool> {
        let mut moved = false;
        let mut at = 0;
        while let Some((_, mail)) = state.controls.get(at) {
            let Some((from, [kind, number, time])) = mail.take(&*self.host)? else {
                at += 1;
                continue;
            };
            state.controls.remove(at);
            moved = true;
            if kind == REPLY {
                self.decide(state, from, number, time)?;
            } else if kind == DECISION {
                let identity = self.message(from, self.host.rank(), number, Side::Receiver);
                if let Some(operation) = find(state, identity) {
                    operation.stage = NcclStage::Settled;
                    self.order.settle(time, identity, self.owner, operation.ticket);
                }
            }
        }
        Ok(moved)
    }

    /// Decides when a message is sent, which its receiver is ready for.
    fn decide(&self, state: &mut NcclState, to: usize, number: u64, proposed: u64) -> Result<()> {
        let identity = self.message(self.host.rank(), to, number, Side::Sender);
        let Some(operation) = find(state, identity) else { return Ok(()) };
        operation.stage = NcclStage::Settled;
        let time = self.order.decide(proposed, identity, self.owner, operation.ticket);
        operation.sent.push(self.tell(to, control_label()?, &[DECISION, number, time])?);
        Ok(())
    }
}

/// Returns the operation of an identity, unless it has been given up.
fn find(state: &mut NcclState, identity: Identity) -> Option<&mut NcclOperation> {
    state.operations.iter_mut().find(|operation| operation.identity == identity)
}
