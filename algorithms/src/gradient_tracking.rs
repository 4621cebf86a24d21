//! Gradient tracking: gossip in which every rank also keeps an estimate of the mean gradient, and steps with it.
//!
//! ```text
//! yᵢ ← Σⱼ wᵢⱼ yⱼ + gᵢ − gᵢ′          gᵢ′: gᵢ of the step before; gossip of y overlaps with the passes
//! xᵢ ← Σⱼ wᵢⱼ (xⱼ − γ yⱼ)            the direction of the optimizer is yᵢ; gossip of x follows its step
//! ```
//!
//! (The gossip of y uses the W of x in the step before; y = g′ = 0 at first, so that the first direction is g₁.) The
//! mean of all yᵢ is the mean gradient at every step. If data differ between ranks, D-PSGD converges to a point near
//! the optimum, at a distance of about γ times the difference; this algorithm reaches the optimum, and replicas agree
//! there. It removes the error from heterogeneous data, not the noise of mini-batches, which y carries through two more
//! rounds of gossip.
//!
//! With a codec, both mixings are of encoded differences, as in [`gossip`](crate::gossip), each with its own estimates:
//! ranks still reach the optimum, but later. The graph must be static then.
//!
//! Among other ranks, y = g′ = 0 again: with the means of the ranks that are left, the mean of y would differ from that of
//! g′ if the state of a rank is lost, and the difference would stay in every later direction.
//!
//! Bytes sent per rank and step: 2 deg · S, or 2 deg messages of the codec, S being the size of the parameters: twice
//! the bytes of D-PSGD. State: y and g′, 2 S; with a codec 4 S more. Default: the one-peer exponential graph, deg = 1,
//! over which ranks agree soonest of all graphs with few bytes; any doubly stochastic schedule is valid. Use it with
//! plain SGD, or with momentum on y. Replicas differ; evaluate their mean. Sources: Di Lorenzo and Scutari, "NEXT:
//! in-network nonconvex optimization", 2016; Nedić, Olshevsky and Shi, "Achieving geometric convergence for distributed
//! optimization over time-varying graphs", SIAM J. Optim. 2017 (DIGing); with a codec: Liao, Li, Huang and Pu, "A
//! compressed gradient tracking method for decentralized optimization with linear convergence", IEEE Trans. Automatic
//! Control 2022 (C-GT).

use crate::gossip::{Gossip, GossipState};
use crate::plugin::{About, Algorithm, Bucket, Buckets, Clipping, Context, Fields, Needs, Trigram};
use hexagram_logical::decentralized::Topology;
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};

/// Gossip of parameters and of the direction.
#[derive(Debug, Clone)]
pub struct GradientTracking {
    /// Mixing of the parameters, and of the directions.
    pub gossip: Gossip,
}

impl Default for GradientTracking {
    fn default() -> Self {
        GradientTracking { gossip: Gossip::over(Topology::OnePeerExponential) }
    }
}

/// State of one bucket.
pub struct Tracked {
    /// Direction y.
    direction: Buffer,
    /// Last gradient g′.
    last: Buffer,
    /// State of the mixing of directions.
    directions: GossipState,
    /// State of the mixing of parameters.
    parameters: GossipState,
}

impl Algorithm for GradientTracking {
    type State = Tracked;

    fn about(&self) -> About {
        About::new(
            "gradient-tracking",
            Trigram { centralized: false, synchronous: true, full_precision: self.gossip.codec.is_none() },
        )
        .period(1)
        .source(
            "Di Lorenzo and Scutari, 2016; Nedić, Olshevsky and Shi, SIAM J. Optim. 2017; Liao et al., 2022",
        )
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
        .remembers_gradients(true)
        .clipping(Clipping::Together)
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        self.gossip.options(options)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Tracked> {
        let direction = context.zeros_like(&bucket.gradients)?;
        let last = context.zeros_like(&bucket.gradients)?;
        let parameters = self.gossip.state(context, &bucket.parameters, 0).await?;
        let directions = self.gossip.state(context, &direction, 1).await?;
        Ok(Tracked { direction, last, directions, parameters })
    }

    async fn before_forward(&self, context: &Context, state: &mut Tracked, _: &Buffer) -> Result<()> {
        let round = context.step().saturating_sub(1);
        self.gossip.mix(context, &mut state.directions, &mut state.direction, round).await
    }

    async fn gradients_ready(
        &self,
        context: &Context,
        state: &mut Tracked,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let Tracked { direction, last, .. } = state;
        context.add_scaled(1.0, &bucket.gradients, direction)?;
        context.add_scaled(-1.0, last, direction)?;
        context.copy(&bucket.gradients, last)?;
        context.copy(direction, &bucket.gradients)
    }

    async fn after_step(&self, context: &Context, state: &mut Tracked, bucket: &mut Bucket) -> Result<()> {
        self.gossip.mix(context, &mut state.parameters, &mut bucket.parameters, context.step()).await
    }

    fn checkpoint(&self, state: &mut Tracked, fields: &mut Fields) -> Result<()> {
        fields.buffer("direction", &mut state.direction)?;
        fields.buffer("last-gradient", &mut state.last)?;
        state.directions.checkpoint("known-directions", fields)?;
        state.parameters.checkpoint("known-parameters", fields)
    }
}
