//! NCCL's own collectives, and the agreement before them.
//!
//! Ranks that call different collectives of NCCL's hang, so they compare what they call, in rounds k = 0, 1, …: rank r
//! writes to rank r + 2^k and reads from r − 2^k, so that a rank which has completed all rounds knows that all ranks
//! have come and agree. In as many rounds again they find the latest of the times that each proposes, at which the
//! collective has its place in the [order](super::order).
//!
//! Sums and products are NCCL's, in its order. f32 and f64 are divided after the sum, 16-bit floats before, by NCCL. A
//! NaN is made the one that reductions here give.

use super::endpoint::{NcclOperation, NcclPath, NcclStage, NcclState, NcclWork};
use super::library::{Reduction, reduction};
use super::order::Identity;
use crate::dtype::ReduceOp;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::memory::{ReadView, WriteView};
use crate::native::Collectives;
use crate::path::mail::Mail;
use crate::transport::{Got, Label, Source, Ticket};

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
    fn rounds(&self) -> u32 {
        self.host.size().next_power_of_two().ilog2()
    }

    /// Returns the rank that one reads from in a round.
    fn before(&self, round: u32) -> usize {
        let size = self.host.size();
        (self.host.rank() + size - (1 << round) % size) % size
    }

    /// Returns the rank for which a pending operation waits, if it is a collective that is not agreed on.
    pub(super) fn awaited(&self, operation: &NcclOperation) -> Option<usize> {
        let NcclStage::Agreeing { round, .. } = &operation.stage else { return None };
        Some(self.before(*round))
    }

    /// Begins a round of the agreement: without a time, in which ranks come.
    fn ask(
        &self,
        sent: &mut Vec<Ticket>,
        label: &Label,
        round: u32,
        latest: Option<u64>,
    ) -> Result<NcclStage> {
        let host = &*self.host;
        let first = if latest.is_some() { ROUNDS } else { 0 };
        let label = Label { tag: label.tag.at_step(AGREEMENT + first + round as usize)?, ..*label };
        let to = (host.rank() + (1 << round)) % host.size();
        sent.push(self.tell(to, label, latest.as_slice())?);
        let count = latest.as_slice().len();
        let mail = Mail::expect(host, Source::Rank(self.before(round)), label, count)?;
        Ok(NcclStage::Agreeing { round, latest, mail })
    }

    /// Goes on with an agreement as far as mail has come, unless its lane is one of those in which others agree, earlier
    /// ones; adds it to them if it has to wait.
    pub(super) fn agree(
        &self,
        state: &mut NcclState,
        operation: &mut NcclOperation,
        lanes: &mut Vec<usize>,
    ) -> Result<bool> {
        let lane = operation.label.tag.lane();
        if lanes.contains(&lane) {
            return Ok(false);
        }
        let mut moved = false;
        if matches!(operation.stage, NcclStage::Queued) {
            operation.stage = self.ask(&mut operation.sent, &operation.label, 0, None)?;
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
            _ if next < self.rounds() => self.ask(&mut operation.sent, &operation.label, next, heard),
            None => {
                let time = self.order.propose(operation.identity, self.owner);
                self.ask(&mut operation.sent, &operation.label, 0, Some(time))
            }
            Some(time) => {
                self.order.settle(time, operation.identity, self.owner, operation.ticket);
                Ok(NcclStage::Settled)
            }
        }
    }

    fn begin(
        &self,
        ticket: Ticket,
        label: Label,
        input: Option<ReadView>,
        output: WriteView,
    ) -> NcclOperation {
        let identity: Identity =
            [self.communicator, u64::MAX - label.tag.lane() as u64, label.tag.sequence(), 0];
        let got = Got { peer: self.host.rank(), bytes: output.byte_len() };
        let stage = if self.rounds() == 0 {
            self.order.decide(0, identity, self.owner, ticket);
            NcclStage::Settled
        } else {
            NcclStage::Queued
        };
        let work = Some(NcclWork::Collective { input, output });
        NcclOperation { ticket, label, identity, sent: Vec::new(), work, stage, got }
    }
}

impl Collectives for NcclPath {
    fn offers(&self, label: &Label, _: Option<&ReadView>, _: &WriteView) -> bool {
        let offered = match label.fingerprint.operation {
            OperationKind::AllReduce | OperationKind::ReduceScatter => {
                reduced_by(&label.fingerprint).is_some()
            }
            OperationKind::AllGather | OperationKind::Broadcast => true,
            _ => false,
        };
        offered && label.tag.is_of_world()
    }

    fn post(&self, label: Label, input: Option<ReadView>, output: WriteView) -> Ticket {
        let state = &mut *self.state.borrow_mut();
        self.open(state, |_, ticket| Ok(self.begin(ticket, label, input, output)))
    }
}
