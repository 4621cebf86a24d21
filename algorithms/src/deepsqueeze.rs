//! DeepSqueeze: gossip of encoded parameters, in which every rank keeps the error of its last message.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     with this rank's own gradient
//! qᵢ ← C(xᵢ + eᵢ),  eᵢ ← xᵢ + eᵢ − qᵢ        sent to all neighbours
//! xᵢ ← xᵢ + η (Σⱼ wᵢⱼ qⱼ − qᵢ)
//! ```
//!
//! Ranks keep no state of their neighbours, so W may change from round to round. In exchange the parameters themselves
//! are encoded, not their differences: the error of C is proportional to their size, the distance of ranks stays above
//! about η times that, and coarse codecs need a small η. The mean over ranks follows the mean gradient. Nothing
//! overlaps with the passes. Each rank keeps its own momentum. Replicas differ; evaluate their mean.
//!
//! C has to be a contraction, or e grows without bound: with QSGD of few levels it diverges, and with the sign or top-k
//! ranks stay far apart. Defaults: 8 bits and η = .5, at which the distance of ranks in training is smallest; the
//! one-peer exponential graph, which matches a ring at half the bytes.
//!
//! Bytes sent per rank and step: deg messages of C, in 8 bits deg · (d + 8⌈d/2048⌉) for d parameters; deg = 1 with the
//! default, slightly more than a quarter of their size S. State: e, S. Elements: f32. Use it with plain SGD. Source:
//! Tang et al., "DeepSqueeze: decentralization meets error-compensated compression", 2019.

use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram, check_f32};
use hexagram_logical::Result;
use hexagram_logical::codec::{Codec, MinMax8, any_codec};
use hexagram_logical::decentralized::{GossipOptions, Schedule, Topology, any_graph};
use hexagram_logical::encoding::{Encoding, Feedback};
use hexagram_logical::options_text::{Options, above};
use std::sync::Arc;

/// Gossip of encoded parameters with error feedback.
#[derive(Debug, Clone)]
pub struct DeepSqueeze {
    /// Codec C of the parameters.
    pub codec: Arc<dyn Codec>,
    /// Step η towards the mean of the neighbours, above 0 and at most 1.
    pub consensus: f64,
    /// Mixing weights W.
    pub schedule: Arc<dyn Schedule>,
}

impl Default for DeepSqueeze {
    fn default() -> Self {
        let codec = Arc::new(MinMax8::default());
        let schedule = Arc::new(Topology::OnePeerExponential);
        DeepSqueeze { codec, consensus: 0.5, schedule }
    }
}

impl Algorithm for DeepSqueeze {
    /// Error feedback e.
    type State = Encoding;

    fn about(&self) -> About {
        About::new("deepsqueeze", Trigram { centralized: false, synchronous: true, full_precision: false })
            .period(1)
            .source("Tang et al., DeepSqueeze: decentralization meets error-compensated compression, 2019")
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("codec", &mut self.codec, any_codec(), "C, of the parameters")?;
        options.field("graph", &mut self.schedule, any_graph(), "W, ranks to mix with, and weights")?;
        options.field(
            "consensus",
            &mut self.consensus,
            above(0.0).up_to(1.0),
            "η, step towards the mean of the neighbours",
        )
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Encoding> {
        check_f32(bucket)?;
        Ok(context.encoding(Arc::clone(&self.codec), Feedback::Error))
    }

    async fn after_step(&self, context: &Context, error: &mut Encoding, bucket: &mut Bucket) -> Result<()> {
        let squeezed = GossipOptions { consensus: self.consensus, ..GossipOptions::default() };
        context.gossip_encoded(&mut bucket.parameters, &*self.schedule, context.step(), error, squeezed).await
    }

    fn checkpoint(&self, error: &mut Encoding, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| fields.encoding("error", error))
    }
}
