//! Low-precision decentralized SGD as Bagua has it: on a ring, every rank tells its neighbours in eight bits how its
//! parameters have changed.
//!
//! ```text
//! x½ ← optimizer(xᵢ, gᵢ)                                      with this rank's own gradient
//! q  ← C(x½ + (x̂ₗ + x̂ᵣ) / 3 − 5/3 xᵢ)                         C: 8 bits of the range of each block; l, r: neighbours
//! xᵢ ← xᵢ + q,  and at both neighbours  x̂ᵢ ← x̂ᵢ + q           x̂ᵢ = xᵢ, bit by bit
//! ```
//!
//! The mixture of ring neighbours, a third each (half each between two ranks), of which only the difference to what
//! neighbours know already is sent: DCD-PSGD. Another codec and any static graph can be had, with its weights in place
//! of the thirds; coarse codecs diverge (QSGD of 4 levels does), for which [`ChocoSgd`](crate::choco_sgd::ChocoSgd) is.
//! Nothing of it overlaps with the passes, since it needs the stepped parameters. Momentum stays each rank's own;
//! replicas differ, evaluate their mean.
//!
//! Bytes sent per rank and step: deg · (d + 8⌈d/2048⌉) ÷ interval for d parameters, deg being 2 for 3 ranks or more,
//! S/2 in all: a quarter of a ring's in full precision. State: xᵢ and the weighted sum of what is known of neighbours,
//! 2 S. They begin where all ranks are, by one gossip in full precision whenever the state is made, so that neither a
//! switch nor another cut of the buckets leaves a rank with a wrong idea of its neighbours. Default: every step.
//! Elements: f32.
//!
//! Sources: Bagua (its `low_precision_decentralized`); Tang, Gan, Zhang, Zhang and Liu, "Communication compression for
//! decentralized training", NeurIPS 2018. C rounds, and so is not unbiased as the proof there asks; with 8 bits the
//! differences it makes are sent with the next ones.

use crate::gossip::check_static;
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, check_f32};
use hexagram_logical::Result;
use hexagram_logical::codec::{Codec, MinMax8, any_codec};
use hexagram_logical::decentralized::{Difference, GossipOptions, Schedule, Topology, any_graph};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::spelling::Options;
use std::sync::Arc;

/// Gossip of differences, by default on a ring and in eight bits.
#[derive(Debug, Clone)]
pub struct LowPrecisionDecentralized {
    /// Number of steps from one communication to the next, 1 or more.
    pub interval: u64,
    /// Codec C of the differences; a fine one, since parameters become what it says of them.
    pub codec: Arc<dyn Codec>,
    /// Mixing weights; the same in every round.
    pub schedule: Arc<dyn Schedule>,
}

impl Default for LowPrecisionDecentralized {
    fn default() -> Self {
        let codec = Arc::new(MinMax8::default());
        LowPrecisionDecentralized { interval: 1, codec, schedule: Arc::new(Topology::Ring) }
    }
}

impl Algorithm for LowPrecisionDecentralized {
    /// Copies of this rank's and its neighbours' parameters, as all of them know them.
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
