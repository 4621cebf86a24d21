//! Stochastic gradient push: gossip over directed graphs, in which a rank need not know which ranks take from it, or
//! when.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ(zᵢ))                              the model computes with zᵢ
//! xᵢ ← Σⱼ pᵢⱼ xⱼ,  wᵢ ← Σⱼ pᵢⱼ wⱼ                         push-sum; every column of P adds up to 1
//! zᵢ ← xᵢ / wᵢ
//! ```
//!
//! Every rank distributes its full values, so the sums of all xᵢ and of all wᵢ are preserved. The received total may be
//! that of less or more than one rank; wᵢ is the number of ranks. wᵢ = 1 at first, and stays 1 if every rank receives
//! as much as it sends, as with the default. The parameters between steps are zᵢ; xᵢ = wᵢ zᵢ replaces them for the
//! optimizer step. Each rank keeps its own momentum. Replicas differ; evaluate their mean, Σ wᵢ zᵢ / n, which follows
//! the mean gradient as Σ xᵢ / n does.
//!
//! Bytes sent per rank and step: deg · (S + 8), S being the size of the parameters. State: wᵢ. Default: the one-peer
//! exponential graph of the paper, deg = 1, exact after log₂ n steps for n a power of two, and good for odd n. Any
//! schedule is valid whose columns add up to 1 and whose graphs, combined over some steps, connect all ranks: see
//! `Mixing::push`. Source: Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning",
//! ICML 2019.

use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::Result;
use hexagram_logical::decentralized::{Schedule, Topology, any_graph};
use hexagram_logical::options_text::Options;
use std::sync::Arc;

/// Push-sum of the parameters.
#[derive(Debug, Clone)]
pub struct Sgp {
    /// Column-stochastic weights with which ranks send to others.
    pub schedule: Arc<dyn Schedule>,
}

impl Default for Sgp {
    fn default() -> Self {
        Sgp { schedule: Arc::new(Topology::OnePeerExponential) }
    }
}

impl Algorithm for Sgp {
    /// Weight w of this rank.
    type State = f64;

    fn about(&self) -> About {
        About::new("sgp", Trigram { centralized: false, synchronous: true, full_precision: true })
            .period(1)
            .source("Assran, Loizou, Ballas and Rabbat, ICML 2019")
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        options.field("graph", &mut self.schedule, any_graph(), "ranks to send to; columns add up to 1")
    }

    async fn state(&self, _: &Context, _: &Bucket) -> Result<f64> {
        Ok(1.0)
    }

    async fn after_backward(&self, context: &Context, w: &mut f64, bucket: &mut Bucket) -> Result<()> {
        context.scale(*w, &bucket.parameters)
    }

    async fn after_step(&self, context: &Context, w: &mut f64, bucket: &mut Bucket) -> Result<()> {
        context.push_sum(&mut bucket.parameters, w, &*self.schedule, context.step()).await?;
        context.scale(1.0 / *w, &bucket.parameters)
    }

    fn weight(&self, w: &f64) -> f64 {
        *w
    }

    fn checkpoint(&self, w: &mut f64, fields: &mut Fields) -> Result<()> {
        fields.number("weight", w)
    }
}
