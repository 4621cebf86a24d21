//! Checks before the first step: they refuse options and element types that an algorithm does not support.

use crate::plugin::Bucket;
use hexagram_logical::{DType, Error, Result};
use std::fmt::Debug;

/// Fails unless an option `holds`; `want` describes its values, as in `above 0`.
///
/// ```
/// let period = 0;
/// let error = hexagram::algorithms::plugin::check_option(period > 0, "period", &period, "1 or more").unwrap_err();
/// assert_eq!(error.to_string(), "period is 0; choose 1 or more");
/// ```
///
/// # Errors
/// [`Error::Usage`] with the option, its value, and the valid values.
pub fn check_option(holds: bool, option: &str, value: &dyn Debug, want: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::usage(format!("{option} is {value:?}"), format!("choose {want}")))
}

/// Fails unless a bucket is f32, as codecs require.
///
/// # Errors
/// [`Error::Usage`] with its type.
pub fn check_f32(bucket: &Bucket) -> Result<()> {
    match bucket.gradients.dtype() {
        DType::F32 => Ok(()),
        other => {
            let what = format!("gradients of {other} cannot be encoded");
            Err(Error::usage(what, "train in f32, or with an algorithm of full precision"))
        }
    }
}

/// Returns the error for a settle between the gradients and the end of their step.
pub(crate) fn settled_within_step() -> Error {
    Error::usage("the training was settled within a step", "call `settle` between steps")
}
