//! The periodic mean of the parameters of the replicas.
//!
//! In full precision, parameters are replaced by their mean. With a codec, each rank sends its change since the last
//! mean, which is small, so that the codec error is small, too: with x₀ the last mean, x₀ ← x₀ − (1/n) Σᵢ (x₀ − xᵢ) and
//! xᵢ ← x₀. Feedback is in units of the parameters, so that γ may change.

use super::{Averager, Averaging, Bucket, Context, Fields};
use hexagram_logical::{Buffer, Result};

/// Means of the parameters of one bucket, and their state from one to the next.
pub struct ParameterMean {
    averager: Averager,
    /// Last mean x₀, if changes are encoded.
    last: Option<Buffer>,
}

impl ParameterMean {
    /// Creates the state for the means of a bucket, whose parameters are equal on all ranks.
    ///
    /// # Errors
    /// As [`Averaging::state`].
    pub fn new(averaging: &Averaging, context: &Context, bucket: &Bucket) -> Result<Self> {
        let averager = averaging.state(context, bucket)?;
        let last = if averaging.is_exact() { None } else { Some(context.copy_of(&bucket.parameters)?) };
        Ok(ParameterMean { averager, last })
    }

    /// Stores parameters, which are equal on all ranks, as the last mean.
    ///
    /// # Errors
    /// As [`Context::copy`].
    pub fn begin(&mut self, context: &Context, parameters: &Buffer) -> Result<()> {
        self.last.as_ref().map_or(Ok(()), |last| context.copy(parameters, last))
    }

    /// Replaces the parameters of all ranks by their mean: `xᵢ ← (1/n) Σⱼ xⱼ`, up to the codec error.
    ///
    /// # Errors
    /// As [`Averager::mean`].
    pub async fn meet(&mut self, context: &Context, parameters: &mut Buffer) -> Result<()> {
        let Some(last) = &self.last else { return self.averager.mean(context, parameters).await };
        context.blend(-1.0, parameters, 1.0, last)?;
        self.averager.mean(context, parameters).await?;
        context.add_scaled(-1.0, parameters, last)?;
        context.copy(last, parameters)
    }

    /// Declares the state.
    ///
    /// # Errors
    /// As [`Fields::buffer`].
    pub fn checkpoint(&mut self, fields: &mut Fields) -> Result<()> {
        self.averager.checkpoint("averager", fields)?;
        let Some(last) = &mut self.last else { return Ok(()) };
        fields.shared(|fields| fields.buffer("last-mean", last))
    }
}
