//! CHOCO-SGD: gossip in which every rank sends, in any lossy encoding, the difference between its parameters and its
//! neighbours' estimate of them.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     with this rank's own gradient
//! qᵢ ← C(xᵢ − x̂ᵢ)                            sent to all neighbours
//! x̂ⱼ ← x̂ⱼ + qⱼ                               of every neighbour and of rank i
//! xᵢ ← xᵢ + γ_c (Σⱼ wᵢⱼ x̂ⱼ − x̂ᵢ)
//! ```
//!
//! C may be any codec with a contraction, such as top-k or the sign: the part that it drops remains in xᵢ − x̂ᵢ, and is
//! sent later; until then no rank uses it. W is static. The mean over ranks follows the mean gradient. Nothing overlaps
//! with the passes, since the parameters are encoded after the optimizer step. Each rank keeps its own momentum.
//! Replicas differ; evaluate their mean.
//!
//! γ_c must suit the codec; too large a value diverges. It can be measured (see [`gossip`](crate::gossip));
//! constructors choose it:
//!
//! | codec | γ_c | message, for d parameters |
//! |---|---|---|
//! | [`ChocoSgd::sign`], default | .45, as tuned for ResNet-20 | ⌈d/8⌉ + 4⌈d/2048⌉ |
//! | [`ChocoSgd::top_k`] of a share k/d | 2 k/d, at most 1 | 4k + k(2 + ⌈log₂(d/k)⌉)/8 + 2 at most |
//! | [`ChocoSgd::min_max8`] | 1: nearly exact | d + 8⌈d/2048⌉ |
//!
//! (The value tuned for top-k of 1 % on a ring of 9 was .04. On a ring of 4 without gradients, ranks stall with 4 k/d
//! and agree with 2 k/d. The sums x̂ are in f32: with values of about 1, the mean over ranks drifts by some 10⁻⁷ per
//! step.)
//!
//! Bytes sent per rank and step: deg messages, with the sign deg · (⌈d/8⌉ + 4⌈d/2048⌉); deg is 2 on the ring, the
//! default here and in the paper, so it is slightly more than S/16, S being the size of the parameters. State: x̂ᵢ and
//! Σⱼ wᵢⱼ x̂ⱼ, 2 S for any graph; it starts from the parameters of all ranks, by one gossip in full precision whenever
//! it is created. Elements: f32. Use it with plain SGD. Sources: Koloskova, Stich and Jaggi, "Decentralized stochastic
//! optimization and gossip algorithms with compressed communication", ICML 2019; Koloskova, Lin, Stich and Jaggi,
//! "Decentralized deep learning with arbitrary communication compression", ICLR 2020.

use crate::gossip::{Gossip, GossipState, consensus};
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::codec::{Codec, Keep, MinMax8, Sign, TopK, any_codec};
use hexagram_logical::decentralized::{Schedule, Topology, any_graph};
use hexagram_logical::options_text::Options;
use std::sync::Arc;

/// Gossip of encoded differences.
#[derive(Debug, Clone)]
pub struct ChocoSgd {
    /// Codec C of the differences.
    pub codec: Arc<dyn Codec>,
    /// Step γ_c towards the mean of the neighbours, above 0 and at most 1; `None` to measure it: see
    /// [`gossip`](crate::gossip).
    pub consensus: Option<f64>,
    /// Mixing weights W, the same in every round.
    pub schedule: Arc<dyn Schedule>,
}

impl ChocoSgd {
    /// Creates the algorithm with one bit per parameter.
    pub fn sign() -> Self {
        Self::on_ring(Arc::new(Sign::default()), 0.45)
    }

    /// Creates the algorithm with top-k; `share` is k/d, above 0 and at most 1.
    ///
    /// # Errors
    /// [`Error::Usage`](hexagram_logical::Error::Usage) for a share out of range.
    pub fn top_k(share: f64) -> Result<Self> {
        Ok(Self::on_ring(Arc::new(TopK::new(Keep::Ratio(share))?), (2.0 * share).min(1.0)))
    }

    /// Creates the algorithm with eight bits per parameter.
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
        options.field(
            "consensus",
            &mut self.consensus,
            consensus(),
            "γ_c, step towards the mean of the neighbours",
        )
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
