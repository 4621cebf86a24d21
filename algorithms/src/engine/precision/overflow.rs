//! Overflows under algorithms whose codecs refuse values that are not finite, so that the loss scaler of the framework
//! finds them.
//!
//! ```text
//! some gradient of a bucket is not finite, on any rank:   the bucket is NaN on all ranks, and its hook does not run
//! ```
//!
//! So the scaler of every rank finds an overflow, as it does in full precision. The hooks of the other buckets of the
//! step have run: their state counts the step.

use crate::plugin::{AnyAlgorithm, Bucket, Context};
use hexagram_logical::device::measure;
use hexagram_logical::{Buffer, Communicator, Error, ReadView, ReduceOp, Result};

/// Treatment of gradients that are not finite, before the hook that uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum OverflowCheck {
    /// The hook receives them.
    #[default]
    None,
    /// All ranks agree whether any rank has such gradients, and skip the step.
    Shared,
    /// This rank refuses its own, which would enter the state of the algorithm.
    Refused,
}

impl OverflowCheck {
    /// Returns the treatment for an algorithm under a framework that scales the loss itself.
    pub(crate) fn of(algorithm: &AnyAlgorithm) -> Self {
        // If parameters are communicated, a rank that steps with its own gradients skips on its own.
        let encodes = algorithm.keeps_replicas_identical() || !algorithm.needs().parameters;
        let refuses = encodes && !algorithm.trigram().full_precision;
        match refuses && algorithm.trigram().synchronous {
            true => OverflowCheck::Shared,
            false if algorithm.remembers_gradients() => OverflowCheck::Refused,
            false => OverflowCheck::None,
        }
    }
}

/// Fails if a gradient of a bucket is NaN or infinite on this rank.
pub(crate) fn check(context: &Context, bucket: &Bucket) -> Result<()> {
    let Some((_, index)) = not_finite(&[&bucket.gradients])? else { return Ok(()) };
    let tensor = bucket.tensors.iter().find(|tensor| tensor.elements.contains(&index));
    let name = tensor.map_or("", |tensor| &tensor.name);
    let what = format!(
        "the gradient of `{name}` is not finite on rank {}, in step {}, and would stay in the state of the algorithm",
        context.rank(),
        context.step()
    );
    let remedy = "find out why training diverges there; if you scale the loss, use the engine option \
                  `loss_scale`, which skips such a step on all ranks";
    Err(Error::usage(what, remedy))
}

/// Returns true if gradients of a bucket are not finite on any rank: an all-reduce of 4 bytes.
pub(crate) async fn somewhere(comm: &Communicator, gradients: &Buffer) -> Result<bool> {
    let mut found = Buffer::from_slice(&[i32::from(not_finite(&[gradients])?.is_some())])?;
    comm.all_reduce(&mut found, ReduceOp::Max).await?;
    Ok(found.host::<i32>()?[0] != 0)
}

/// Sets all gradients of a bucket to NaN.
pub(crate) fn show(gradients: &Buffer) -> Result<()> {
    gradients.write_all()?.scale(f64::NAN)
}

/// Returns views of whole buckets of gradients.
pub(crate) fn views(gradients: &[&Buffer]) -> Result<Vec<ReadView>> {
    gradients.iter().map(|gradients| gradients.read_all()).collect()
}

/// Returns bucket and index of the first element that is not finite.
pub(crate) fn not_finite(gradients: &[&Buffer]) -> Result<Option<(usize, usize)>> {
    let found = measure::not_finite(views(gradients)?)?;
    Ok(found.into_iter().enumerate().find_map(|(bucket, at)| Some((bucket, at?))))
}
