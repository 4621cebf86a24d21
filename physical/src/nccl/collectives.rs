//! Collectives that NCCL carries out, and how it is called.
//!
//! Sums and products are NCCL's, in its order. f32 and f64 are divided after the sum, 16-bit floats before, by NCCL. A
//! NaN is made the one that reductions here give.

use super::endpoint::NcclPath;
use super::library::{Comm, Libnccl, Reduction, Status, data_type, reduction};
use super::members::Members;
use super::queue::{NcclOperation, Stage};
use crate::device::cuda::handle::StreamHandle;
use crate::dtype::{DType, ReduceOp};
use crate::error::Result;
use crate::fingerprint::{Fingerprint, OperationKind};
use crate::memory::{ReadView, Span, WriteView};
use crate::native::Collectives;
use crate::transport::{Label, Ticket};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

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

/// Gives a collective to NCCL, if it communicates anything.
///
/// # Safety
/// The memory lives until the device is done with it, and has the lengths that all ranks expect.
pub(super) unsafe fn call(
    what: &Fingerprint,
    (from, to): (&Span, &Span),
    nccl: &Libnccl,
    comm: Comm,
    stream: StreamHandle,
) -> Status {
    let input = from.address().cast::<c_void>();
    let output = to.address().cast::<c_void>();
    let bytes = data_type(DType::U8);
    let dtype = data_type(what.dtype);
    let op = reduced_by(what).unwrap_or(Reduction::SUM);
    // SAFETY: as the caller says.
    unsafe {
        match what.operation {
            _ if from.is_empty() || to.is_empty() => Status::SUCCESS,
            OperationKind::AllReduce => {
                (nccl.ncclAllReduce)(input, output, to.len(), dtype, op, comm, stream)
            }
            OperationKind::ReduceScatter => {
                (nccl.ncclReduceScatter)(input, output, to.len(), dtype, op, comm, stream)
            }
            OperationKind::AllGather => {
                (nccl.ncclAllGather)(input, output, from.byte_len(), bytes, comm, stream)
            }
            _ => {
                let root = what.root.unwrap_or(0) as c_int;
                (nccl.ncclBroadcast)(input, output, to.byte_len(), bytes, root, comm, stream)
            }
        }
    }
}

impl NcclPath {
    /// Takes in a collective of these ranks.
    fn begin(
        &self,
        ticket: Ticket,
        label: Label,
        ranks: &Arc<[usize]>,
        (input, output): (Option<ReadView>, WriteView),
    ) -> Result<NcclOperation> {
        let members = Members::new(ranks, self.host.rank())?;
        let sent = Vec::new();
        let operation = NcclOperation { ticket, label, members, sent, input, output, stage: Stage::Queued };
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
        self.open(|ticket| self.begin(ticket, label, members, (input, output)))
    }
}
