//! Exact diffusion, or D²: gossip that corrects the effect of the last mixing on a rank, and so reaches the global
//! optimum.
//!
//! ```text
//! ψᵢ ← optimizer(xᵢ, gᵢ)                     with this rank's own gradient
//! φᵢ ← ψᵢ + cᵢ                               cᵢ = xᵢ − ψᵢ of the step before; 0 at first
//! xᵢ ← Σⱼ āᵢⱼ φⱼ,  cᵢ ← xᵢ − ψᵢ              Ā = (I + W) / 2
//! ```
//!
//! With plain SGD of a constant γ, this is D² with the weights Ā: x ← Ā (2x − x′ − γ (g − g′)), primes denoting the
//! step before. D-PSGD converges to a point where the gradient of a rank and the mixing cancel; here c cancels the
//! mixing, so ranks converge only where they agree and the mean of the gradients is 0. It needs W static and symmetric;
//! Ā has no negative eigenvalue then. It removes the error from heterogeneous data, not the noise of mini-batches. It
//! sends half the bytes of gradient tracking, and ends nearer to the optimum than D-PSGD where data differ. Nothing
//! overlaps with the passes. Replicas differ; evaluate their mean.
//!
//! Bytes sent per rank and step: deg · S, S being the size of the parameters, 2 S on the ring, the default. State: c,
//! S. Its theory covers plain SGD; any optimizer can be used. Sources: Yuan, Ying, Zhao and Sayed, "Exact diffusion for
//! distributed optimization and learning", IEEE Trans. Signal Processing 2019; Tang, Lian, Yan, Zhang and Liu, "D²:
//! decentralized training over decentralized data", ICML 2018.

use crate::gossip::check_symmetric;
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::decentralized::{Lazy, Schedule, Topology, any_graph};
use hexagram_logical::options_text::Options;
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Gossip of the parameters with the correction of the last mixing.
#[derive(Debug, Clone)]
pub struct ExactDiffusion {
    /// Graph with the mixing weights W: the same in every step, symmetric.
    pub graph: Arc<dyn Schedule>,
}

impl Default for ExactDiffusion {
    fn default() -> Self {
        ExactDiffusion { graph: Arc::new(Topology::Ring) }
    }
}

impl Algorithm for ExactDiffusion {
    /// Correction c.
    type State = Buffer;

    fn about(&self) -> About {
        About::new("exact-diffusion", Trigram { centralized: false, synchronous: true, full_precision: true })
            .period(1)
            .source(
                "Yuan, Ying, Zhao and Sayed, IEEE Trans. Signal Processing 2019; Tang et al., D², ICML 2018",
            )
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("graph", &mut self.graph, any_graph(), "W, the same in every step, symmetric")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Buffer> {
        check_symmetric(context, &*self.graph)?;
        context.zeros_like(&bucket.parameters)
    }

    async fn after_step(
        &self,
        context: &Context,
        correction: &mut Buffer,
        bucket: &mut Bucket,
    ) -> Result<()> {
        let x = &mut bucket.parameters;
        context.add_scaled(1.0, correction, x)?;
        // c − φ is −ψ.
        context.add_scaled(-1.0, x, correction)?;
        let half = Lazy { graph: Arc::clone(&self.graph), share: 0.5 };
        context.gossip(x, &half, context.step()).await?;
        context.add_scaled(1.0, x, correction)
    }

    fn checkpoint(&self, correction: &mut Buffer, fields: &mut Fields) -> Result<()> {
        fields.buffer("correction", correction)
    }
}
