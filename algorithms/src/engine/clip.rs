//! Clipping of gradients by their global norm.
//!
//! ```text
//! ‖g‖ ← √ Σ gᵢ²                      over all buckets, in f64, in the order of the plan
//! g ← g · min(1, limit / ‖g‖)
//! ```
//!
//! It is the norm of what the algorithm has left for the optimizer, so that no rank has to be asked: where all ranks have the
//! same gradients they find the same norm, bit for bit. Source: Pascanu, Mikolov and Bengio, "On the difficulty of training
//! recurrent neural networks", ICML 2013.

use super::plan::Plan;
use crate::plugin::with_float;
use hexagram_logical::{Buffer, Error, Result};

pub(super) fn check_limit(limit: f64) -> Result<()> {
    if limit.is_finite() && limit > 0.0 {
        return Ok(());
    }
    Err(Error::usage(format!("gradients cannot be clipped to a norm of {limit}"), "use a positive clip_norm"))
}

/// Scales gradients, by bucket of the plan, down to the limit.
pub(super) fn clip(plan: &Plan, gradients: &[&Buffer], limit: f64) -> Result<()> {
    let sum = gradients.iter().try_fold(0.0, |sum, gradients| Ok::<_, Error>(sum + squares(gradients)?))?;
    let norm = sum.sqrt();
    if !norm.is_finite() {
        return Err(no_norm(plan, gradients, norm));
    }
    if norm <= limit {
        return Ok(());
    }
    gradients.iter().try_for_each(|g| g.write_all()?.scale(limit / norm))
}

fn squares(gradients: &Buffer) -> Result<f64> {
    fn sum<T: Copy + Into<f64>>(elements: &[T]) -> f64 {
        elements.iter().map(|g| (*g).into().powi(2)).sum()
    }
    with_float!(gradients.dtype(), T => Ok(sum(&gradients.host::<T>()?)))
}

/// Returns index and value of the first element of a buffer that is not finite.
pub(super) fn not_finite(buffer: &Buffer) -> Result<Option<(usize, f64)>> {
    fn first<T: Copy + Into<f64>>(elements: &[T]) -> Option<(usize, f64)> {
        elements.iter().map(|x| (*x).into()).enumerate().find(|(_, x)| !x.is_finite())
    }
    with_float!(buffer.dtype(), T => Ok(first(&buffer.host::<T>()?)))
}

fn no_norm(plan: &Plan, gradients: &[&Buffer], norm: f64) -> Error {
    let remedy = "see why training diverges there, and lower the learning rate";
    for (bucket, gradients) in gradients.iter().enumerate() {
        match not_finite(gradients) {
            Ok(None) => {}
            Err(error) => return error,
            Ok(Some((at, value))) => {
                let (name, index) = plan.name(bucket, at);
                let what = format!(
                    "the gradients cannot be clipped: element {index} of that of `{name}` is {value}"
                );
                return Error::usage(what, remedy);
            }
        }
    }
    Error::usage(format!("the gradients cannot be clipped: their norm is {norm}"), remedy)
}
