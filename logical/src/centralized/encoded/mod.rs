//! Centralized, synchronous, low precision: everyone gets the same result, bit for bit, from messages that are encoded.
//!
//! | primitive | how | for |
//! |---|---|---|
//! | [`all_reduce_encoded`](crate::Communicator::all_reduce_encoded) | scatter-gather of encoded chunks | codecs of a fixed rate: 16, 8, 4 bits, signs |
//! | [`all_reduce_sparse`](crate::Communicator::all_reduce_sparse) | all-gather of whole messages | codecs whose messages are small: top-k, random-k |
//! | [`all_reduce_linear`](crate::Communicator::all_reduce_linear) | all-reduce of what is encoded | codecs whose messages add up: PowerSGD, random-k at common places |
//! | [`mean_kept_encoded`](crate::Communicator::mean_kept_encoded) | scatter-gather, differences | parameters that each rank keeps changing |
//! | [`majority_vote`](crate::Communicator::majority_vote) | scatter-gather of signs, which are counted | signSGD |
//!
//! `segments` says how a buffer is cut, and runs the scatter-gather that two of them share; `roles` is what a rank does
//! with each segment of an encoded one.

mod ballot;
mod kept;
mod linear;
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

/// Names of a rank's memory of its contributions.
const WORKER_NAMES: LinkNames = LinkNames { error: "error", difference: "estimate" };

/// Returns an encoding's memory of `len` elements under a name, made beside `served`; zero at first.
fn entry<C: ?Sized>(
    encoding: &mut Encoding<C>,
    name: &'static str,
    served: &Buffer,
    len: usize,
) -> Result<Arc<Buffer>> {
    Ok(encoding.state_mut().entry(served, name, DType::F32, len)?.0)
}

/// Fails unless a buffer is of f32, which is what codecs encode.
fn check_dtype(buffer: &Buffer) -> Result<()> {
    if buffer.dtype() == DType::F32 {
        return Ok(());
    }
    Err(Error::usage(format!("codecs encode f32, not {}", buffer.dtype()), "convert to f32 first"))
}

/// Fails unless `op` is a sum or a mean, which alone are linear.
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
