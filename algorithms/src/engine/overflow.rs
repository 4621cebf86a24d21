//! Overflows that the framework's own scaling of the loss is to find, under algorithms whose codecs refuse what is not
//! finite.
//!
//! ```text
//! some gradient of a bucket is not finite, on any rank:   the bucket is NaN on all ranks, and its hook does not run
//! ```
//!
//! So every rank's scaler finds an overflow, as it does where numbers travel as they are. Other buckets of the step have
//! run their hooks: what these remember counts the step.

use super::clip::not_finite;
use hexagram_logical::{Buffer, Communicator, ReduceOp, Result};

/// Returns true if gradients of a bucket are not finite on some rank: an all-reduce of 4 bytes.
pub(super) async fn somewhere(comm: &Communicator, gradients: &Buffer) -> Result<bool> {
    let mut found = Buffer::from_slice(&[i32::from(not_finite(&[gradients])?.is_some())])?;
    comm.all_reduce(&mut found, ReduceOp::Max).await?;
    Ok(found.host::<i32>()?[0] != 0)
}

/// Makes all of a bucket's gradients NaN.
pub(super) fn show(gradients: &Buffer) -> Result<()> {
    gradients.write_all()?.scale(f64::NAN)
}
