//! Centralized, synchronous, low precision: every rank gets the same result, bit for bit, from encoded messages.
//!
//! | primitive | method | use |
//! |---|---|---|
//! | [`all_reduce_encoded`](crate::Communicator::all_reduce_encoded) | scatter-gather of encoded chunks | codecs of a fixed rate: 16, 8, 4 bits, signs |
//! | [`all_reduce_sparse`](crate::Communicator::all_reduce_sparse) | all-gather of whole messages | codecs whose messages are small: top-k, random-k |
//! | [`all_reduce_linear`](crate::Communicator::all_reduce_linear) | all-reduce of encoded messages | codecs whose messages can be added: PowerSGD, random-k at common places |
//! | [`mean_kept_encoded`](crate::Communicator::mean_kept_encoded) | scatter-gather, differences | parameters that each rank keeps changing |
//! | [`majority_vote`](crate::Communicator::majority_vote) | scatter-gather of signs, which are counted | signSGD |
//!
//! `segments` divides a buffer, and runs the scatter-gather that two of the primitives share; `roles` is the work of
//! a rank on each segment.

mod ballot;
mod linear;
mod mean_preserving;
mod roles;
pub(super) mod scatter_gather;
mod segments;
mod sparse;
mod tally;
pub(super) mod vote;

#[cfg(feature = "cuda")]
pub use ballot::MODULE as VOTES;
pub use segments::Segments;

use crate::encoding::{Encoding, LinkNames};
use crate::{Buffer, DType, Error, ReduceOp, Result};
use std::sync::Arc;

/// Names of the memory of a rank for its contributions.
const WORKER_NAMES: LinkNames = LinkNames { error: "error", difference: "estimate" };

/// Returns the memory of an encoding for `len` elements under a name, on the device of `served`; initially zero.
fn entry<C: ?Sized>(
    encoding: &mut Encoding<C>,
    name: &'static str,
    served: &Buffer,
    len: usize,
) -> Result<Arc<Buffer>> {
    Ok(encoding.state_mut().entry(served, name, DType::F32, len)?.0)
}

/// Fails unless a buffer holds f32, which codecs encode.
fn check_dtype(buffer: &Buffer) -> Result<()> {
    if buffer.dtype() == DType::F32 {
        return Ok(());
    }
    Err(Error::usage(format!("codecs encode f32, not {}", buffer.dtype()), "convert to f32 first"))
}

/// Fails unless `op` is a sum or a mean, the only linear ones.
fn check_op(op: ReduceOp) -> Result<()> {
    if matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Ok(());
    }
    Err(Error::usage(format!("an encoded {op} is not supported"), "use a sum or a mean"))
}

/// Returns the weight of each contribution.
fn weight(op: ReduceOp, ranks: usize) -> f32 {
    if op == ReduceOp::Mean { 1.0 / ranks as f32 } else { 1.0 }
}
