//! NCCL's own collectives, and the agreement before them.
//!
//! Ranks that call different collectives of NCCL's hang, so they compare what they call, in rounds k = 0, 1, …: member m
//! of their group writes to m + 2^k and reads from m − 2^k, so that a rank which has completed all rounds knows that all ranks
//! have come and agree. In as many rounds again they find the latest of the times that each proposes, at which the
//! collective has its place in the [order](super::order).
//!
//! Sums and products are NCCL's, in its order. f32 and f64 are divided after the sum, 16-bit floats before, by NCCL. A
//! NaN is made the one that reductions here give.

use super::endpoint::{NcclPath, NcclState};
use super::library::{Reduction, reduction};
use super::members::Members;
use super::operation::{NcclOperation, NcclStage, NcclWork};
use super::order::Identity;
use crate::dtype::ReduceOp;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::hash::of_bytes;
use crate::memory::{ReadView, WriteView};
use crate::native::Collectives;
use crate::path::mail::Mail;
use crate::tag::Tag;
use crate::transport::{Got, Label, Source, Ticket};
use std::sync::Arc;

/// First step of the agreement, beyond the steps of any operation.
const AGREEMENT: usize = 0xff00;
/// Most rounds, in which ranks come, and in which they propose.
const ROUNDS: usize = usize::BITS as usize;

/// Returns what NCCL does of a reduction; `None` if that is not what it is here.
pub(super) fn reduced_by(what: &Fingerprint) -> Option<Reduction> {
    let op = match what.reduce? {
        // Divided afterwards.
        ReduceOp::Mean if what.dtype.is_float() && !what.dtype.is_half() => ReduceOp::Sum,
        op => op,
    };
    reduction(op, what.dtype)
}

/// Returns the factor that completes a reduction by NCCL, and every NaN with it; `None` if there is none to complete.
pub(super) fn completed_by(what: &Fingerprint, ranks: usize) -> Option<f64> {
    let op = what.reduce.filter(|_| what.dtype.is_float() && ranks > 1)?;
    let divides = op == ReduceOp::Mean && !what.dtype.is_half();
    Some(if divides { 1.0 / ranks as f64 } else { 1.0 })
}

impl NcclPath {
    /// Returns the rank for which a pending operation waits, if it is a collective that is not agreed on.
    pub(super) fn awaited(&self, operation: &NcclOperation) -> Option<usize> {
        let NcclStage::Agreeing { round, .. } = &operation.stage else { return None };
        Some(operation.members.before(*round))
    }

    /// Begins a round of the agreement: without a time, in which ranks come.
    fn ask(&self, operation: &mut NcclOperation, round: u32, latest: Option<u64>) -> Result<NcclStage> {
        let NcclOperation { label, members, sent, .. } = operation;
        let first = if latest.is_some() { ROUNDS } else { 0 };
        let label = Label { tag: label.tag.at_step(AGREEMENT + first + round as usize)?, ..*label };
        sent.push(self.tell(members.after(round), label, latest.as_slice())?);
        let count = latest.as_slice().len();
        let mail = Mail::expect(&*self.host, Source::Rank(members.before(round)), label, count)?;
        Ok(NcclStage::Agreeing { round, latest, mail })
    }

    /// Goes on with an agreement as far as mail has come, unless its lane is one of those in which others agree, earlier
    /// ones; adds it to them if it has to wait.
    pub(super) fn agree(
        &self,
        state: &mut NcclState,
        operation: &mut NcclOperation,
        lanes: &mut Vec<Tag>,
    ) -> Result<bool> {
        let lane = operation.label.tag.series();
        if lanes.contains(&lane) {
            return Ok(false);
        }
        let mut moved = false;
        if matches!(operation.stage, NcclStage::Queued) {
            operation.stage = self.ask(operation, 0, None)?;
            moved = true;
        }
        while let NcclStage::Agreeing { round, latest, mail } = &operation.stage {
            let heard = match latest {
                None => mail.take::<0>(&*self.host)?.map(|_| None),
                Some(latest) => mail.take(&*self.host)?.map(|(_, [time])| Some(time.max(*latest))),
            };
            let Some(heard) = heard else {
                lanes.push(lane);
                return Ok(moved);
            };
            moved = true;
            state.tickets.advance(operation.ticket, 1);
            let round = *round;
            operation.stage = self.after_round(operation, round, heard)?;
        }
        Ok(moved)
    }

    /// Returns the stage after a round in which this rank has heard a time, or that others have come.
    fn after_round(
        &self,
        operation: &mut NcclOperation,
        round: u32,
        heard: Option<u64>,
    ) -> Result<NcclStage> {
        let next = round + 1;
        match heard {
            _ if next < operation.members.rounds() => self.ask(operation, next, heard),
            None => {
                let time = self.order.propose(operation.identity, self.owner);
                self.ask(operation, 0, Some(time))
            }
            Some(time) => {
                self.order.settle(time, operation.identity, self.owner, operation.ticket);
                Ok(NcclStage::Settled)
            }
        }
    }

    /// Returns the identity of a collective: groups without a common rank may have the same number.
    fn collective(&self, label: &Label, members: &Members) -> Identity {
        let number = u64::from(label.tag.communicator());
        let numbers = std::iter::once(number).chain(members.ranks().iter().map(|rank| *rank as u64));
        let communicator = match label.tag.is_of_world() {
            true => self.communicator,
            false => numbers.fold(self.communicator, |hash, number| of_bytes(hash, number.to_le_bytes())),
        };
        [communicator, u64::MAX - label.tag.lane() as u64, label.tag.sequence(), 0]
    }

    fn begin(
        &self,
        ticket: Ticket,
        label: Label,
        members: Members,
        input: Option<ReadView>,
        output: WriteView,
    ) -> NcclOperation {
        let identity = self.collective(&label, &members);
        let got = Got { peer: self.host.rank(), bytes: output.byte_len() };
        let stage = if members.rounds() == 0 {
            self.order.decide(0, identity, self.owner, ticket);
            NcclStage::Settled
        } else {
            NcclStage::Queued
        };
        let work = Some(NcclWork::Collective { input, output });
        NcclOperation { ticket, label, members, identity, sent: Vec::new(), work, stage, got }
    }
}

impl Collectives for NcclPath {
    fn offers(&self, label: &Label, members: &[usize], _: Option<&ReadView>, _: &WriteView) -> bool {
        let offered = match label.fingerprint.operation {
            OperationKind::AllReduce | OperationKind::ReduceScatter => {
                reduced_by(&label.fingerprint).is_some()
            }
            OperationKind::AllGather | OperationKind::Broadcast => true,
            _ => false,
        };
        // A group of one rank has nothing to communicate, and nobody to connect to.
        offered && (label.tag.is_of_world() || members.len() > 1)
    }

    fn post(
        &self,
        label: Label,
        members: &Arc<[usize]>,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        self.open(state, |_, ticket| {
            let members = Members::new(members, self.host.rank())?;
            Ok(self.begin(ticket, label, members, input, output))
        })
    }
}
