//! NoLoCo: long local phases, after which each rank exchanges with one random other rank, and never with all.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                                        every step, with this rank's own gradient
//! after every H-th step, with ⟨·⟩ᵢ = Σⱼ wᵢⱼ ·ⱼ, the mean of rank i and its partner:
//!     mᵢ ← μ mᵢ + η ⟨x − θ⟩ᵢ + γ (⟨θ⟩ᵢ − θᵢ)                    slow momentum; the last term pulls partners together
//!     θᵢ ← θᵢ + mᵢ
//!     xᵢ ← θᵢ
//! ```
//!
//! One message gives both means, since η ⟨x − θ⟩ + γ ⟨θ⟩ = ⟨η x + (γ − η) θ⟩; the authors' code, whose γ is η, sends
//! two. Partners are drawn again in every round, by [`Topology::RandomPairs`], whose seed all ranks share. If the
//! number of ranks is odd, one has no partner: it steps with its own change, and is not pulled. Other graphs work, too:
//! with [`Topology::Complete`] every rank has θ of an outer SGD with heavy-ball momentum.
//!
//! The mean of θ over ranks is that of such an SGD, for any pairs and γ. The distances of the ranks from it, if no
//! gradient drives them apart, converge to 0 in the mean square if
//!
//! ```text
//! γ < 2 (1 − μ²) / (1 + μ − μ n / (n − 1))      n ranks, even, in random pairs: 2 (1 + μ) for two
//! γ < 2 (1 − μ²)                                many ranks, or an odd number
//! ```
//!
//! which follows from the recursion of E(θ − θ̄)², E(θ − θ̄) m and E m². So γ ≥ 2 (1 − μ²) is refused, and γ > 1, with
//! which other graphs than pairs may diverge.
//!
//! There is no variant with a codec: encoded gossip keeps estimates of neighbours, which must stay the same, and its
//! bounds on the step do not hold with a momentum in the loop. Replicas differ; evaluate their mean.
//!
//! Bytes sent per rank and step: S / H, S being the size of the parameters; deg · S / H on other graphs, and 0 for a
//! rank without a partner. State: θ and m, 2 S. Elements: f32 and f64. Defaults: η = γ = .7 and μ = .5, as in the
//! authors' code; H = 8 for trainings of some hundred steps; the authors use 50. Source: Kolehmainen, Blagoev, Donaghy,
//! Ersoy and Nies, "NoLoCo: no-all-reduce low communication training method for large models", 2025 (arXiv 2506.10911).

use crate::diloco::Global;
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::decentralized::{Schedule, Topology, any_graph};
use hexagram_logical::options_text::{Options, above};
use std::sync::Arc;

/// Local steps, and outer steps with the changes of two ranks at a time.
#[derive(Debug, Clone)]
pub struct NoLoCo {
    /// Graph of the rounds, one matrix per round. Default: random pairs.
    pub graph: Arc<dyn Schedule>,
    /// Number H of local steps in a round, at least 1.
    pub period: u64,
    /// Outer learning rate η, above 0.
    pub outer_rate: f64,
    /// Outer momentum coefficient μ, in [0, 1).
    pub outer_momentum: f64,
    /// Strength γ of the pull between slow parameters, above 0 and at most 1, and below 2 (1 − μ²).
    pub pull: f64,
}

impl Default for NoLoCo {
    fn default() -> Self {
        let graph = Arc::new(Topology::RandomPairs { seed: 0, pairs: None });
        NoLoCo { graph, period: 8, outer_rate: 0.7, outer_momentum: 0.5, pull: 0.7 }
    }
}

impl Algorithm for NoLoCo {
    /// Slow parameters θ of this rank, and their momentum m.
    type State = Global;

    fn about(&self) -> About {
        About::new("noloco", Trigram { centralized: false, synchronous: true, full_precision: true })
            .source("Kolehmainen et al., NoLoCo: no-all-reduce low communication training method for large models, 2025")
            // θ.
            .remembers_parameters(true)
            .period(self.period)
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("graph", &mut self.graph, any_graph(), "ranks to average with, round by round")?;
        options.field("period", &mut self.period, 1.., "H, local steps of a round")?;
        options.field("outer_rate", &mut self.outer_rate, above(0.0), "η, outer learning rate")?;
        options.field(
            "outer_momentum",
            &mut self.outer_momentum,
            0.0..1.0,
            "μ, outer momentum coefficient",
        )?;
        options.field(
            "pull",
            &mut self.pull,
            above(0.0).up_to(1.0),
            "γ, strength of the pull between partners",
        )?;
        let agrees = self.pull < 2.0 * (1.0 - self.outer_momentum.powi(2));
        options.require(agrees, "pull", &self.pull, "less than 2 (1 − outer_momentum²), or ranks drift apart")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Global> {
        let parameters = context.copy_of(&bucket.parameters)?;
        let velocity = context.zeros_like(&bucket.parameters)?;
        Ok(Global { parameters, velocity })
    }

    async fn after_step(&self, context: &Context, slow: &mut Global, bucket: &mut Bucket) -> Result<()> {
        if !context.ends_round(self.period) {
            return Ok(());
        }
        let Global { parameters: slow, velocity: momentum } = slow;
        let message = &mut bucket.parameters;
        context.blend(self.outer_rate, message, self.pull - self.outer_rate, slow)?;
        context.gossip(message, &*self.graph, context.step() / self.period).await?;
        context.combine(self.outer_momentum, momentum, &[(1.0, message), (-self.pull, slow)])?;
        context.add_scaled(1.0, momentum, slow)?;
        context.copy(slow, message)
    }

    fn checkpoint(&self, slow: &mut Global, fields: &mut Fields) -> Result<()> {
        fields.averaged(|fields| slow.checkpoint(fields))
    }
}
