//! QG-DSGDm: gossip with a momentum of the actual change of the parameters, mixing included, instead of local
//! gradients.
//!
//! ```text
//! xᵢ′ ← xᵢ − γ gᵢ − β pᵢ
//! xᵢ″ ← Σⱼ wᵢⱼ xⱼ′                            gossip
//! pᵢ ← μ pᵢ + (1 − μ) (xᵢ − xᵢ″)              0 at first; unchanged while γ is 0
//! pᵢ ← pᵢ · γ / γ′                            before the step, if γ has fallen from γ′
//! ```
//!
//! The paper keeps m = p / γ, which is equivalent while γ does not rise. If ranks still differ when γ is near 0, m
//! would grow without bound; p stays of the size of a step.
//!
//! Momentum of local gradients drives ranks apart if their data differ. The change of the parameters over a whole step
//! is close to that of the mean of all, so m is close to a momentum of the mean gradient, without further messages.
//! With β = 0 it is D-PSGD, adapt then combine. Nothing overlaps with the passes. Replicas differ; evaluate their mean.
//!
//! Bytes sent per rank and step: deg · S, S being the size of the parameters, or deg messages of the codec. State: p
//! and the parameters before the step, 2 S; with a codec 2 S more. Defaults: β = μ = .9, and the one-peer exponential
//! graph. Use it with plain SGD, at the learning rate of SGD with momentum .9. Source: Lin, Karimireddy, Stich and
//! Jaggi, "Quasi-global momentum: accelerating decentralized deep learning on heterogeneous data", ICML 2021.

use crate::gossip::{Gossip, GossipState};
use crate::plugin::{
    About, Algorithm, Bucket, Buckets, Clipping, Context, Fields, Needs, Optimizers, Trigram,
};
use hexagram_logical::decentralized::Topology;
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};

/// Gossip of the parameters with quasi-global momentum.
#[derive(Debug, Clone)]
pub struct QgDsgdm {
    /// Mixing of the parameters.
    pub gossip: Gossip,
    /// Share β of the momentum in the direction, in [0, 1).
    pub momentum: f64,
    /// Decay μ of the momentum, in [0, 1).
    pub decay: f64,
}

impl Default for QgDsgdm {
    fn default() -> Self {
        QgDsgdm { gossip: Gossip::over(Topology::OnePeerExponential), momentum: 0.9, decay: 0.9 }
    }
}

/// State of one bucket.
pub struct Course {
    /// Momentum p, in units of the parameters.
    momentum: Buffer,
    /// Learning rate of the last step that had one above 0.
    rate: f64,
    /// Parameters before the step.
    before: Buffer,
    /// State of the mixing.
    gossip: GossipState,
}

impl Algorithm for QgDsgdm {
    type State = Course;

    fn about(&self) -> About {
        About::new(
            "qg-dsgdm",
            Trigram { centralized: false, synchronous: true, full_precision: self.gossip.codec.is_none() },
        )
        .period(1)
        .needs_learning_rate(true)
        .source("Lin, Karimireddy, Stich and Jaggi, Quasi-global momentum, ICML 2021")
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
        .clipping(Clipping::Together)
        .optimizers(Optimizers::Sgd(
            "its momentum is that of the whole step, and a second one would act again",
        ))
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.gossip.options(options)?;
        options.field(
            "momentum",
            &mut self.momentum,
            0.0..1.0,
            "β, share of the momentum in the direction",
        )?;
        options.field("decay", &mut self.decay, 0.0..1.0, "μ, decay of the momentum")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Course> {
        let gossip = self.gossip.state(context, &bucket.parameters, 0).await?;
        let momentum = context.zeros_like(&bucket.parameters)?;
        let before = context.zeros_like(&bucket.parameters)?;
        Ok(Course { momentum, rate: 0.0, before, gossip })
    }

    async fn after_backward(&self, context: &Context, state: &mut Course, bucket: &mut Bucket) -> Result<()> {
        context.copy(&bucket.parameters, &state.before)
    }

    async fn after_step(&self, context: &Context, state: &mut Course, bucket: &mut Bucket) -> Result<()> {
        let Course { momentum, rate: last, before, gossip } = state;
        let rate = context.learning_rate()?;
        if rate == 0.0 {
            return self.gossip.mix(context, gossip, &mut bucket.parameters, context.step()).await;
        }
        if rate < *last {
            context.scale(rate / *last, momentum)?;
        }
        *last = rate;
        context.add_scaled(-self.momentum, momentum, &bucket.parameters)?;
        self.gossip.mix(context, gossip, &mut bucket.parameters, context.step()).await?;
        let taken = 1.0 - self.decay;
        context.combine(self.decay, momentum, &[(taken, before), (-taken, &bucket.parameters)])
    }

    fn checkpoint(&self, state: &mut Course, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| fields.buffer("momentum", &mut state.momentum))?;
        fields.shared(|fields| fields.number("rate", &mut state.rate))?;
        state.gossip.checkpoint("known", fields)
    }
}
