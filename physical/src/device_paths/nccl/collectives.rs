//! Collectives that NCCL carries out, and the calls to it.
//!
//! Sums and products are NCCL's, in its order. f32 and f64 are divided after the sum, 16-bit floats before, by NCCL. A NaN is
//! replaced by the NaN that reductions of this crate return.

use super::endpoint::NcclPath;
use super::members::GroupMembers;
use super::queue::{CollectiveStage, NcclOperation};
use super::translation::{data_type, reduction};
use crate::device::cuda::driver::handle::StreamHandle;
use crate::device::cuda::enqueue::address;
use crate::error::Result;
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{ReadView, Span, WriteView};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::Collectives;
use crate::transport::{Label, Ticket};
use nccl_rs::{Communicator, Reduction};
use std::sync::Arc;

/// Returns the part of a reduction that NCCL carries out; `None` if its definition differs from that of this crate.
pub(super) fn reduced_by(what: &Fingerprint) -> Option<Reduction> {
    let op = match what.reduce? {
        // Divided afterwards.
        ReduceOp::Mean if what.dtype.is_float() && !what.dtype.is_half() => ReduceOp::Sum,
        op => op,
    };
    reduction(op, what.dtype)
}

/// Returns the factor that completes a reduction by NCCL and replaces every NaN; `None` if nothing is left to complete.
pub(super) fn completed_by(what: &Fingerprint, ranks: usize) -> Option<f64> {
    let op = what.reduce.filter(|_| what.dtype.is_float() && ranks > 1)?;
    let divides = op == ReduceOp::Mean && !what.dtype.is_half();
    Some(if divides { 1.0 / ranks as f64 } else { 1.0 })
}

/// Gives a collective to NCCL, if it communicates anything.
///
/// # Safety
/// The memory lives until the device is done with it, and has the lengths that all ranks expect.
pub(super) unsafe fn call(
    what: &Fingerprint,
    (from, to): (&Span, &Span),
    comm: &Communicator,
    stream: StreamHandle,
) -> nccl_rs::Result<()> {
    let on = comm.on(stream.0.cast());
    let (input, output) = (address(from), address(to));
    let bytes = data_type(DType::U8);
    let dtype = data_type(what.dtype);
    let op = reduced_by(what).unwrap_or(Reduction::Sum);
    // SAFETY: as the caller says.
    unsafe {
        match what.operation {
            _ if from.is_empty() || to.is_empty() => Ok(()),
            OperationKind::AllReduce => on.all_reduce(input, output, to.len(), dtype, op),
            OperationKind::ReduceScatter => on.reduce_scatter(input, output, to.len(), dtype, op),
            OperationKind::AllGather => on.all_gather(input, output, from.byte_len(), bytes),
            _ => on.broadcast(input, output, to.byte_len(), bytes, what.root.unwrap_or(0) as usize),
        }
    }
}

impl NcclPath {
    /// Accepts a collective of these ranks.
    fn begin(
        &self,
        ticket: Ticket,
        label: Label,
        ranks: &Arc<[usize]>,
        (input, output): (Option<ReadView>, WriteView),
    ) -> Result<NcclOperation> {
        let members = GroupMembers::new(ranks, self.host.rank())?;
        let sent = Vec::new();
        let operation =
            NcclOperation { ticket, label, members, sent, input, output, stage: CollectiveStage::Queued };
        let (from, to) = operation.spans();
        [from, to].iter().try_for_each(|span| self.check_place(span)).map(|()| operation)
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
        // A group of one rank has nothing to communicate, and no peer to connect to.
        offered && (label.tag.is_of_world() || members.len() > 1)
    }

    fn post(
        &self,
        label: Label,
        members: &Arc<[usize]>,
        input: Option<ReadView>,
        output: WriteView,
    ) -> Ticket {
        self.open(|ticket| self.begin(ticket, label, members, (input, output)))
    }

    /// Returns the rank for which the first collective of the queue waits: all others in the queue wait for that collective.
    fn missing(&self, ticket: Ticket) -> Vec<usize> {
        let state = self.state.borrow();
        let is_in_queue = state.queue.iter().any(|operation| operation.ticket == ticket);
        let first = state.queue.front().filter(|_| is_in_queue);
        first.and_then(NcclOperation::awaited).into_iter().collect()
    }

    fn is_queued(&self, ticket: Ticket) -> bool {
        self.state.borrow().queue.iter().skip(1).any(|operation| operation.ticket == ticket)
    }
}
