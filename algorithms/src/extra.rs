//! EXTRA: D-PSGD with the sum of all changes by mixing as a correction, which leads each rank to the global optimum.
//!
//! ```text
//! xᵢ ← Σⱼ wᵢⱼ xⱼ + dᵢ − γ gᵢ(xᵢ)             gossip of xᵢ overlaps with the forward and backward pass at xᵢ
//! dᵢ ← dᵢ + (Σⱼ wᵢⱼ xⱼ − xᵢ) / 2              of the x before the step; 0 at first
//! ```
//!
//! This is the authors' x⁺⁺ = (I + W) x⁺ − (I + W)/2 x − γ (g⁺ − g), summed over steps. D-PSGD converges to a point
//! near the optimum; here d grows until mixing and gradient cancel at the optimum itself, where replicas agree. It
//! needs W static and symmetric, and with plain SGD γ below 2 (1 + λ)/2 ÷ L, λ being the smallest eigenvalue of W and L
//! the curvature: 2/3 ÷ L on a ring. The optimizer steps from the mixture with the gradient of each rank.
//! [`exact_diffusion`](crate::exact_diffusion) tolerates a larger γ, but the communication of EXTRA is hidden. Replicas
//! differ; evaluate their mean.
//!
//! Bytes sent per rank and step: deg · S, S being the size of the parameters, 2 S on the ring, the default. State: d,
//! S; a mixture in progress takes S. Its theory covers plain SGD; any optimizer can be used. Source: Shi, Ling, Wu and
//! Yin, "EXTRA: an exact first-order algorithm for decentralized consensus optimization", SIAM J. Optim. 2015.

use crate::gossip::check_symmetric;
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::decentralized::{Schedule, Topology, any_graph};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Gossip of the parameters with the sum of its changes.
#[derive(Debug, Clone)]
pub struct Extra {
    /// Graph with the mixing weights W: the same in every step, symmetric.
    pub graph: Arc<dyn Schedule>,
}

impl Default for Extra {
    fn default() -> Self {
        Extra { graph: Arc::new(Topology::Ring) }
    }
}

/// State of one bucket.
pub struct Moved {
    /// Mixture in progress.
    mixture: Buffer,
    /// Sum d of half of the changes by mixing.
    sum: Buffer,
}

impl Algorithm for Extra {
    type State = Moved;

    fn about(&self) -> About {
        About::new("extra", Trigram { centralized: false, synchronous: true, full_precision: true })
            .period(1)
            .source("Shi, Ling, Wu and Yin, SIAM J. Optim. 2015")
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("graph", &mut self.graph, any_graph(), "W, the same in every step, symmetric")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Moved> {
        check_symmetric(context, &*self.graph)?;
        let x = &bucket.parameters;
        let mixture = context.comm().registered_on(&x.queue(), x.dtype(), x.len())?;
        Ok(Moved { mixture, sum: context.zeros_like(x)? })
    }

    async fn before_forward(&self, context: &Context, state: &mut Moved, x: &Buffer) -> Result<()> {
        context.copy(x, &state.mixture)?;
        context.gossip(&mut state.mixture, &*self.graph, context.step()).await
    }

    async fn after_backward(&self, context: &Context, state: &mut Moved, bucket: &mut Bucket) -> Result<()> {
        let Moved { mixture, sum } = state;
        std::mem::swap(mixture, &mut bucket.parameters);
        let before = mixture;
        context.add_scaled(1.0, sum, &bucket.parameters)?;
        // The parameters are Wx + d now: d + (Wx − x) / 2 is half of them plus d/2, less half of x.
        context.combine(0.5, sum, &[(0.5, &bucket.parameters), (-0.5, before)])
    }

    fn checkpoint(&self, state: &mut Moved, fields: &mut Fields) -> Result<()> {
        fields.buffer("sum", &mut state.sum)
    }
}
