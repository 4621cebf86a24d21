//! CHOCO-SGD: gossip in which every rank sends, however coarsely, how its parameters differ from what is known of them.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     with this rank's own gradient
//! qᵢ ← C(xᵢ − x̂ᵢ)                            sent to all neighbours
//! x̂ⱼ ← x̂ⱼ + qⱼ                               of every neighbour and oneself
//! xᵢ ← xᵢ + γ_c (Σⱼ wᵢⱼ x̂ⱼ − x̂ᵢ)
//! ```
//!
//! C may be any codec with a contraction, such as top-k or the sign: what it leaves out is still in xᵢ − x̂ᵢ and comes
//! later, and meanwhile nobody acts on it. W is static. The mean over ranks follows the mean gradient. Nothing overlaps
//! with the passes, since the stepped parameters are what is encoded. Momentum stays each rank's own; replicas differ,
//! evaluate their mean.
//!
//! γ_c is to suit the codec; too large a one diverges. It can be measured ([`gossip`](crate::gossip) says how);
//! constructors choose it:
//!
//! | codec | γ_c | message, for d parameters |
//! |---|---|---|
//! | [`ChocoSgd::sign`], default | .45, as tuned for ResNet-20 | ⌈d/8⌉ + 4⌈d/2048⌉ |
//! | [`ChocoSgd::top_k`] of a share k/d | 2 k/d, at most 1 | 4k + k(2 + ⌈log₂(d/k)⌉)/8 + 2 at most |
//! | [`ChocoSgd::min_max8`] | 1: nearly exact | d + 8⌈d/2048⌉ |
//!
//! (Tuned for top-k of 1 % on a ring of 9 was .04; on one of 4, ranks without gradients stall with 4 k/d and agree with
//! half of it. Sums x̂ are of f32: with values about 1, the mean over ranks moves by some 10⁻⁷ a step on its own.)
//!
//! Bytes sent per rank and step: deg messages, with the sign deg · (⌈d/8⌉ + 4⌈d/2048⌉); deg is 2 on the ring, the
//! default as that of the paper, so that it is S/16 and some, S being the size of the parameters. State: x̂ᵢ and Σⱼ wᵢⱼ
//! x̂ⱼ, 2 S, whatever the graph; it begins where all ranks are, by one gossip in full precision whenever it is made.
//! Elements: f32. To be run with plain SGD. Sources: Koloskova, Stich and Jaggi, "Decentralized stochastic optimization
//! and gossip algorithms with compressed communication", ICML 2019; Koloskova, Lin, Stich and Jaggi, "Decentralized
//! deep learning with arbitrary communication compression", ICLR 2020.

use crate::gossip::{Gossip, GossipState, consensus};
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::codec::{Codec, Keep, MinMax8, Sign, TopK, any_codec};
use hexagram_logical::decentralized::{Schedule, Topology, any_graph};
use hexagram_logical::spelling::Options;
use std::sync::Arc;

/// Gossip of encoded differences.
#[derive(Debug, Clone)]
pub struct ChocoSgd {
    /// Codec C of the differences.
    pub codec: Arc<dyn Codec>,
    /// Step γ_c towards the neighbours' mean, above 0 and at most 1; `None` to have it measured: see
    /// [`gossip`](crate::gossip).
    pub consensus: Option<f64>,
    /// Mixing weights W; the same in every round.
    pub schedule: Arc<dyn Schedule>,
}

impl ChocoSgd {
    /// Creates the algorithm with one bit for each parameter.
    pub fn sign() -> Self {
        Self::on_ring(Arc::new(Sign::default()), 0.45)
    }

    /// Creates the algorithm with the largest differences, as a share of all, above 0 and at most 1.
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) for another share.
    pub fn top_k(share: f64) -> Result<Self> {
        Ok(Self::on_ring(Arc::new(TopK::new(Keep::Ratio(share))?), (2.0 * share).min(1.0)))
    }

    /// Creates the algorithm with eight bits for each parameter.
    pub fn min_max8() -> Self {
        Self::on_ring(Arc::new(MinMax8::default()), 1.0)
    }

    fn on_ring(codec: Arc<dyn Codec>, consensus: f64) -> Self {
        ChocoSgd { codec, consensus: Some(consensus), schedule: Arc::new(Topology::Ring) }
    }

    fn gossip(&self) -> Gossip {
        let codec = Some(Arc::clone(&self.codec));
        Gossip { graph: Arc::clone(&self.schedule), codec, consensus: self.consensus }
    }
}

impl Default for ChocoSgd {
    fn default() -> Self {
        ChocoSgd::sign()
    }
}

impl Algorithm for ChocoSgd {
    /// Estimates x̂ of the replicas.
    type State = GossipState;

    fn about(&self) -> About {
        About::new("choco-sgd", Trigram { centralized: false, synchronous: true, full_precision: false })
            .period(1)
            .source("Koloskova, Stich and Jaggi, ICML 2019; Koloskova, Lin, Stich and Jaggi, ICLR 2020")
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("codec", &mut self.codec, any_codec(), "C, of the differences")?;
        options.field("graph", &mut self.schedule, any_graph(), "W, the same in every round")?;
        options.field("consensus", &mut self.consensus, consensus(), "γ_c, step towards the neighbours' mean")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<GossipState> {
        self.gossip().state(context, &bucket.parameters, 0).await
    }

    async fn after_step(
        &self,
        context: &Context,
        known: &mut GossipState,
        bucket: &mut Bucket,
    ) -> Result<()> {
        self.gossip().mix(context, known, &mut bucket.parameters, context.step()).await
    }

    fn checkpoint(&self, known: &mut GossipState, fields: &mut Fields) -> Result<()> {
        known.checkpoint("known", fields)
    }
}
