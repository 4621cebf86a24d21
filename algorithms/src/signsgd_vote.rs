//! signSGD with majority vote: every rank has one vote on the direction of every parameter.
//!
//! ```text
//! mᵢ ← β mᵢ + (1 − β) gᵢ                    each rank with its own gradient (Signum); β = 0: the sign of the gradient
//! x  ← x − γ sgn(Σᵢ sgn(mᵢ))                the owner of each chunk counts the votes
//! ```
//!
//! Every step changes every parameter by γ, for any size of its gradient. A few broken or malicious ranks cannot
//! overrule the majority. A tie, or a vote on zeros, has no sign: it counts as + in even steps and as − in odd ones, so
//! that it moves nothing in the long run.
//!
//! It converges if the noise of gradients is unimodal and symmetric. Otherwise, for example with rare large gradients
//! against frequent small ones, the majority sign differs from the sign of the mean, and the loss may rise; `qadam`
//! sends equally few bytes and does not have this problem.
//!
//! State: m, one element per parameter, if β > 0. Bytes sent per rank and step: 2(n−1)/n · Σ ⌈c/8⌉ over the n chunks of
//! c elements that a bucket is cut into: 1/32 of full precision. In hierarchical communication every rank still has one
//! vote, and the result is the same: votes are summed within hosts in f32, S bytes from every rank except leaders, and
//! a leader sends the counts, ⌊log₂ k⌋ + 1 bits per element on hosts of at most k ranks, and one bit per element of the
//! result.
//!
//! Default: β = .9. Replicas: bit-identical. Use it with plain SGD, at a learning rate as for Adam or lower, which
//! decays to 0: steps are never smaller than γ. Elements: f32. Source: Bernstein et al., "signSGD with majority vote is
//! communication efficient and fault tolerant", ICLR 2019.

use crate::plugin::{About, Algorithm, Bucket, Clipping, Context, Fields, Optimizers, Trigram, check_f32};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};

/// Synchronous SGD by signs: each element steps in the direction of the majority of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SignSgdVote {
    /// Momentum coefficient β, in [0, 1).
    pub momentum: f64,
}

impl Default for SignSgdVote {
    fn default() -> Self {
        SignSgdVote { momentum: 0.9 }
    }
}

impl Algorithm for SignSgdVote {
    /// Momentum m, if there is one.
    type State = Option<Buffer>;

    fn about(&self) -> About {
        About::new("signsgd-vote", Trigram { centralized: true, synchronous: true, full_precision: false })
            .period(1)
            .source("Bernstein et al., signSGD with majority vote, ICLR 2019")
            .clipping(match self.momentum {
                0.0 => Clipping::Refused(
                    "without momentum it takes the gradients' signs, which no clipping changes",
                ),
                _ => Clipping::Together,
            })
            .optimizers(Optimizers::Sgd("it leaves signs, and its momentum is before the vote"))
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("momentum", &mut self.momentum, 0.0..1.0, "β, momentum coefficient")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Option<Buffer>> {
        check_f32(bucket)?;
        if self.momentum == 0.0 {
            return Ok(None);
        }
        context.zeros_like(&bucket.gradients).map(Some)
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        momentum: &mut Option<Buffer>,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let vote = &mut bucket.gradients;
        if let Some(momentum) = momentum {
            context.blend(self.momentum, momentum, 1.0 - self.momentum, vote)?;
            context.copy(momentum, vote)?;
        }
        // The vote counts a tie as +.
        let odd = !context.step().is_multiple_of(2);
        if odd {
            context.scale(-1.0, vote)?;
        }
        context.majority_vote(vote).await?;
        if odd {
            context.scale(-1.0, vote)?;
        }
        Ok(())
    }

    fn checkpoint(&self, momentum: &mut Option<Buffer>, fields: &mut Fields) -> Result<()> {
        match momentum {
            Some(momentum) => fields.averaged(|fields| fields.buffer("momentum", momentum)),
            None => Ok(()),
        }
    }
}
