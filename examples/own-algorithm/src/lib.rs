//! Local SGD whose period adapts to how far the replicas have drifted apart.
//!
//! ```text
//! xᵢ ← xᵢ − γ gᵢ                                   every step
//! and at the end of a round of H steps, x̄ being the mean of the replicas:
//! d  ← (1/n) Σⱼ ‖xⱼ‖² − ‖x̄‖²                       their variance: all-reduce of one number
//! xᵢ ← x̄                                           all-reduce of the parameters
//! H  ← 2H if d ≤ (tolerance · ‖x̄‖)², else H/2      between 1 and 64
//! ```
//!
//! State: H, and the step that ends the round. Bytes sent per rank and round: 2(n−1)/n · S + 8(n−1), S being the size of the
//! parameters, from 64 KiB / n on. Replicas are equal when a round ends, and differ within it. Use it with plain SGD.

use hexagram::algorithms::{
    About, Algorithm, Bucket, Buckets, Combine, Context, Fields, Needs, Options, Trigram,
};
use hexagram::logical::options_text::above;
use hexagram::{Buffer, Result};

/// Mean of the parameters, when they have drifted apart.
#[derive(Debug, Clone)]
pub struct AdaptiveLocalSgd {
    /// Largest drift of the replicas, as a part of the parameters' norm.
    pub tolerance: f64,
}

impl Algorithm for AdaptiveLocalSgd {
    /// H, and the step that ends the round.
    type State = (u64, u64);

    fn about(&self) -> About {
        let trigram = Trigram { centralized: true, synchronous: true, full_precision: true };
        About::new("adaptive-local-sgd", trigram)
            .keeps_replicas_identical(false)
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("tolerance", &mut self.tolerance, above(0.0), "largest drift of the replicas")
    }

    async fn state(&self, context: &Context, _: &Bucket) -> Result<(u64, u64)> {
        Ok((1, context.step()))
    }

    async fn after_step(&self, context: &Context, round: &mut (u64, u64), bucket: &mut Bucket) -> Result<()> {
        let (period, end) = round;
        if context.step() < *end {
            return Ok(());
        }
        let mut squares = Buffer::from_slice(&[context.norm(&bucket.parameters)?.powi(2)])?;
        context.mean(&mut squares).await?;
        context.mean(&mut bucket.parameters).await?;
        let size = context.norm(&bucket.parameters)?;
        let drift = (squares.host::<f64>()?[0] - size.powi(2)).max(0.0).sqrt();
        context.metric("drift", Combine::Norm, drift)?;
        *period = if drift <= self.tolerance * size { *period * 2 } else { *period / 2 }.clamp(1, 64);
        *end = context.step() + *period;
        Ok(())
    }

    fn checkpoint(&self, (period, end): &mut (u64, u64), fields: &mut Fields) -> Result<()> {
        fields.shared(|fields| {
            fields.count("period", period)?;
            fields.count("end", end)
        })
    }
}
