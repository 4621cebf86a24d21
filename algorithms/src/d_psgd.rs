//! D-PSGD: every rank takes a weighted mean of its own parameters and its neighbours', and steps with its own gradient.
//!
//! ```text
//! xᵢ ← Σⱼ wᵢⱼ xⱼ − γ gᵢ(xᵢ)          default: gossip of xᵢ runs beside the forward and backward pass at xᵢ
//! xᵢ ← Σⱼ wᵢⱼ (xⱼ − γ gⱼ(xⱼ))        adapt then combine: gossip follows the step, and nothing hides it
//! ```
//!
//! W is that of any [`Schedule`]; the mean over ranks follows the mean gradient if it is doubly stochastic. The optimizer
//! steps from the mixture with each rank's own gradient, and its memory (momentum) stays each rank's own. Replicas differ,
//! the less the better the graph and the smaller γ; evaluate their mean. Adapt then combine allows for a larger γ and,
//! with all peers, is averaged SGD.
//!
//! Bytes sent per rank and step: deg · S ÷ interval, S being the size of the parameters and deg how many others take from
//! the rank (2 on a ring of 3 ranks or more); with all peers as an all-reduce. State: none; a mixture under way takes S.
//! Defaults: the ring of the paper, every step; more ranks agree sooner over `Topology::Exponential`, or at half of a
//! ring's bytes with [`Decentralized`](crate::decentralized::Decentralized)'s. Source: Lian et al., "Can decentralized
//! algorithms outperform centralized algorithms?", NeurIPS 2017; adapt then combine: Chen and Sayed, "Diffusion
//! adaptation strategies for distributed optimization and learning over networks", 2012.

use crate::plugin::{Algorithm, Bucket, Buckets, Context, Needs, Trigram, check_option};
use hexagram_logical::decentralized::{Schedule, Topology};
use hexagram_logical::{Buffer, Result};
use std::sync::Arc;

/// Ranks with which parameters are averaged.
#[derive(Debug, Clone)]
pub enum Peers {
    /// All other ranks alike, by all-reduce.
    All,
    /// The ranks that a schedule names; its rounds count communications, not steps.
    By(Arc<dyn Schedule>),
}

impl<S: Schedule + 'static> From<S> for Peers {
    fn from(schedule: S) -> Self {
        Peers::By(Arc::new(schedule))
    }
}

impl Peers {
    /// Mixes parameters with those of peers: `xᵢ ← Σⱼ wᵢⱼ xⱼ`.
    pub(crate) async fn mix(&self, context: &Context, x: &mut Buffer, round: u64) -> Result<()> {
        match self {
            Peers::All => context.mean(x).await,
            Peers::By(schedule) => context.gossip(x, &**schedule, round).await,
        }
    }
}

/// Gossip of the parameters over any graph.
#[derive(Debug, Clone)]
pub struct DPsgd {
    /// Ranks whose parameters are taken, with their weights.
    pub peers: Peers,
    /// Number of steps from one communication to the next, 1 or more.
    pub interval: u64,
    /// True if gossip follows the optimizer's step instead of running beside the passes before it.
    pub adapt_then_combine: bool,
}

impl Default for DPsgd {
    fn default() -> Self {
        DPsgd { peers: Topology::Ring.into(), interval: 1, adapt_then_combine: false }
    }
}

impl Algorithm for DPsgd {
    /// Mixture under way.
    type State = Buffer;

    fn name(&self) -> &'static str {
        "d-psgd"
    }

    fn trigram(&self) -> Trigram {
        Trigram { centralized: false, synchronous: true, full_precision: true }
    }

    fn needs(&self) -> Needs {
        Needs { buckets: Buckets::Whole, parameters: true }
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Buffer> {
        check_option(self.interval > 0, "interval", &self.interval, "1 or more")?;
        let room = if self.adapt_then_combine { 0 } else { bucket.len() };
        let parameters = &bucket.parameters;
        context.comm().registered_on(&parameters.queue(), parameters.dtype(), room)
    }

    async fn before_forward(&self, context: &Context, mixture: &mut Buffer, x: &Buffer) -> Result<()> {
        match context.round(self.interval) {
            Some(round) if !self.adapt_then_combine => {
                context.copy(x, mixture)?;
                self.peers.mix(context, mixture, round).await
            }
            _ => Ok(()),
        }
    }

    async fn after_backward(
        &self,
        context: &Context,
        mixture: &mut Buffer,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.round(self.interval).is_some() && !self.adapt_then_combine {
            std::mem::swap(mixture, &mut bucket.parameters);
        }
        Ok(())
    }

    async fn after_step(&self, context: &Context, _: &mut Buffer, bucket: &mut Bucket) -> Result<()> {
        match context.round(self.interval) {
            Some(round) if self.adapt_then_combine => {
                self.peers.mix(context, &mut bucket.parameters, round).await
            }
            _ => Ok(()),
        }
    }
}
