//! Gossip-PGA: gossip with a periodic exact average over all ranks.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                                with this rank's own gradient
//! xᵢ ← mean of all xⱼ       in every H-th step
//! xᵢ ← Σⱼ wᵢⱼ xⱼ            in the others
//! ```
//!
//! Gossip keeps replicas close between exact means, which remove the differences that gossip over a sparse graph would
//! keep for long. With H = 1 it is averaged SGD, without exact means D-PSGD (adapt then combine), and with a graph
//! without edges local SGD. The mean over ranks follows the mean gradient. Nothing overlaps with the passes. Each rank
//! keeps its own momentum; replicas differ between exact means.
//!
//! Bytes sent per rank and step: (H − 1)/H · deg · S + 2(n−1)/n · S / H, or + (n−1) · S / H if n · S ≤ 64 KiB, S being
//! the size of the parameters; with a codec, deg messages instead of deg · S. State: none, with a codec 2 S. Defaults:
//! the ring, H = 6. Source: Chen, Yuan, Zhang, Pan, Xu and Yin, "Accelerating gossip SGD with periodic global
//! averaging", ICML 2021.

use crate::gossip::{Gossip, GossipState};
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::decentralized::Topology;
use hexagram_logical::options_text::Options;

/// Gossip of the parameters with periodic exact means.
#[derive(Debug, Clone)]
pub struct GossipPga {
    /// Mixing in the steps between exact means.
    pub gossip: Gossip,
    /// Number H of steps from one exact mean to the next, at least 1.
    pub period: u64,
}

impl Default for GossipPga {
    fn default() -> Self {
        GossipPga { gossip: Gossip::over(Topology::Ring), period: 6 }
    }
}

impl Algorithm for GossipPga {
    type State = GossipState;

    fn about(&self) -> About {
        About::new(
            "gossip-pga",
            Trigram { centralized: false, synchronous: true, full_precision: self.gossip.codec.is_none() },
        )
        .source("Chen et al., Accelerating gossip SGD with periodic global averaging, ICML 2021")
        .period(self.period)
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.gossip.options(options)?;
        options.field("period", &mut self.period, 1.., "H, steps from one exact mean to the next")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<GossipState> {
        self.gossip.state(context, &bucket.parameters, 0).await
    }

    async fn after_step(
        &self,
        context: &Context,
        state: &mut GossipState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.ends_round(self.period) {
            return context.mean(&mut bucket.parameters).await;
        }
        self.gossip.mix(context, state, &mut bucket.parameters, context.step()).await
    }

    fn checkpoint(&self, state: &mut GossipState, fields: &mut Fields) -> Result<()> {
        state.checkpoint("known", fields)
    }
}
