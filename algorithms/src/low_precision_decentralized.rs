//! Low-precision decentralized SGD as in Bagua: on a ring, every rank sends its neighbours the change of its parameters
//! in eight bits.
//!
//! ```text
//! x½ ← optimizer(xᵢ, gᵢ)                                      with this rank's own gradient
//! q  ← C(x½ + (x̂ₗ + x̂ᵣ) / 3 − 5/3 xᵢ)                         C: 8 bits of the range of each block; l, r: neighbours
//! xᵢ ← xᵢ + q,  and at both neighbours  x̂ᵢ ← x̂ᵢ + q           x̂ᵢ = xᵢ, bit by bit
//! ```
//!
//! The mixture of ring neighbours, with weights of 1/3 (1/2 between two ranks), for which only the difference to the
//! neighbours' copies is sent: DCD-PSGD. Other codecs and any static graph are supported, with its weights instead of
//! 1/3; with coarse codecs it diverges (for example QSGD of 4 levels): use [`ChocoSgd`](crate::choco_sgd::ChocoSgd) for
//! them. Nothing overlaps with the passes, since it needs the parameters after the optimizer step. Each rank keeps its
//! own momentum. Replicas differ; evaluate their mean.
//!
//! Bytes sent per rank and step: deg · (d + 8⌈d/2048⌉) ÷ interval for d parameters, deg being 2 for 3 ranks or more,
//! S/2 in all: a quarter of the bytes of a ring in full precision. State: xᵢ and the weighted sum of the copies of the
//! neighbours, 2 S. They start from the present parameters, by one gossip in full precision whenever the state is
//! created, so that the copies are correct after a switch or a change of the buckets. Default: every step. Elements:
//! f32.
//!
//! Sources: Bagua (its `low_precision_decentralized`); Tang, Gan, Zhang, Zhang and Liu, "Communication compression for
//! decentralized training", NeurIPS 2018. C rounds, so it is biased, unlike in their proof; with 8 bits the rounding
//! errors are sent with the next differences.

use crate::gossip::check_static;
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, check_f32};
use hexagram_logical::Result;
use hexagram_logical::codec::{Codec, MinMax8, any_codec};
use hexagram_logical::decentralized::{Difference, GossipOptions, Schedule, Topology, any_graph};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::Options;
use std::sync::Arc;

/// Gossip of differences, by default on a ring in eight bits.
#[derive(Debug, Clone)]
pub struct LowPrecisionDecentralized {
    /// Number of steps from one communication to the next, at least 1.
    pub interval: u64,
    /// Codec C of the differences: a fine one, since parameters are replaced by their decoded values.
    pub codec: Arc<dyn Codec>,
    /// Mixing weights, the same in every round.
    pub schedule: Arc<dyn Schedule>,
}

impl Default for LowPrecisionDecentralized {
    fn default() -> Self {
        let codec = Arc::new(MinMax8::default());
        LowPrecisionDecentralized { interval: 1, codec, schedule: Arc::new(Topology::Ring) }
    }
}

impl Algorithm for LowPrecisionDecentralized {
    /// Copies of the parameters of this rank and of its neighbours, equal on all of them.
    type State = Encoding;

    fn about(&self) -> About {
        About::new(
            "low-precision-decentralized",
            Trigram { centralized: false, synchronous: true, full_precision: false },
        )
        .source("Bagua; Tang et al., Communication compression for decentralized training, NeurIPS 2018")
        .period(self.interval)
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("interval", &mut self.interval, 1.., "steps from one communication to the next")?;
        options.field("codec", &mut self.codec, any_codec(), "C, of the differences; a fine one")?;
        options.field("graph", &mut self.schedule, any_graph(), "W, the same in every round")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Encoding> {
        check_f32(bucket)?;
        check_static(context, &*self.schedule)?;
        let mut known = context.encoding(Arc::clone(&self.codec), Feedback::Difference);
        context.gossip_synchronize(&bucket.parameters, &*self.schedule, &mut known).await?;
        Ok(known)
    }

    async fn after_step(&self, context: &Context, known: &mut Encoding, bucket: &mut Bucket) -> Result<()> {
        let Some(round) = context.round(self.interval) else { return Ok(()) };
        let dcd = GossipOptions { difference: Difference::AfterMixing, ..GossipOptions::default() };
        context.gossip_encoded(&mut bucket.parameters, &*self.schedule, round, known, dcd).await
    }

    fn checkpoint(&self, known: &mut Encoding, fields: &mut Fields) -> Result<()> {
        fields.encoding("known", known)
    }
}
