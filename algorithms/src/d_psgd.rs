//! D-PSGD: every rank takes a weighted mean of its own parameters and its neighbours', and steps with its own gradient.
//!
//! ```text
//! xᵢ ← Σⱼ wᵢⱼ xⱼ − γ gᵢ(xᵢ)          default: gossip of xᵢ overlaps with the forward and backward pass at xᵢ
//! xᵢ ← Σⱼ wᵢⱼ (xⱼ − γ gⱼ(xⱼ))        adapt then combine: gossip follows the step, without overlap
//! ```
//!
//! W is given by any [`Schedule`]; the mean over ranks follows the mean gradient if it is doubly stochastic. The
//! optimizer steps from the mixture with each rank's own gradient, and each rank keeps its own momentum. Replicas
//! differ, less with a better connected graph and a smaller γ; evaluate their mean. Adapt then combine allows for a
//! larger γ and, with all peers, is averaged SGD.
//!
//! With a codec, ranks gossip encoded differences, over a static graph and in either order: [`gossip`](crate::gossip)
//! has the rule. Adapt then combine is CHOCO-SGD then.
//!
//! Bytes sent per rank and step: deg · S ÷ interval, or deg messages of the codec ÷ interval, S being the size of the
//! parameters and deg the number of neighbours that take from the rank (2 on a ring of 3 ranks or more); with all peers
//! as [all-reduce](crate::gradient_all_reduce). State: none, with a codec 2 S; a mixture in progress takes S. Defaults:
//! the ring of the paper, every step. Larger worlds agree sooner over `Topology::Exponential`, or with half the bytes
//! of a ring over the graph of [`Decentralized`](crate::decentralized::Decentralized). Source: Lian et al., "Can
//! decentralized algorithms outperform centralized algorithms?", NeurIPS 2017; adapt then combine: Chen and Sayed,
//! "Diffusion adaptation strategies for distributed optimization and learning over networks", 2012.

use crate::gossip::{Gossip, GossipState, codec_fields};
use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::codec::Codec;
use hexagram_logical::decentralized::{Schedule, Topology, any_graph};
use hexagram_logical::options_text::{Options, or, truth};
use hexagram_logical::{Buffer, Error, Result};
use std::sync::Arc;

/// Ranks to average with.
#[derive(Debug, Clone)]
pub enum Peers {
    /// All other ranks, with equal weights, by all-reduce.
    All,
    /// The ranks given by a schedule; its rounds count communications, not steps.
    By(Arc<dyn Schedule>),
}

impl<S: Schedule + 'static> From<S> for Peers {
    fn from(schedule: S) -> Self {
        Peers::By(Arc::new(schedule))
    }
}

/// Gossip of the parameters over any graph.
#[derive(Debug, Clone)]
pub struct DPsgd {
    /// Ranks to average with, and their weights.
    pub peers: Peers,
    /// Number of steps from one communication to the next, at least 1.
    pub interval: u64,
    /// True to gossip after the optimizer step, instead of during the forward and backward pass before it.
    pub adapt_then_combine: bool,
    /// Codec of the differences, with peers by a static graph; `None` for full precision.
    pub codec: Option<Arc<dyn Codec>>,
    /// Step γ towards the mean of the neighbours with a codec, like [`Gossip::consensus`].
    pub consensus: Option<f64>,
}

/// State of one bucket.
pub struct Mixture {
    /// Mixture in progress.
    mixture: Buffer,
    /// State of the mixing.
    gossip: GossipState,
}

impl DPsgd {
    /// Creates the algorithm that mixes with `peers` during the passes of every step, in full precision.
    pub fn with(peers: impl Into<Peers>) -> Self {
        let peers = peers.into();
        DPsgd { peers, interval: 1, adapt_then_combine: false, codec: None, consensus: None }
    }

    /// Returns the graph; `None` if all ranks average with equal weights.
    pub(crate) fn graph(&self) -> Option<Arc<dyn Schedule>> {
        match &self.peers {
            Peers::All => None,
            Peers::By(graph) => Some(Arc::clone(graph)),
        }
    }

    /// Returns the mixing; `None` if all ranks average with equal weights.
    fn gossip(&self) -> Option<Gossip> {
        let graph = self.graph()?;
        Some(Gossip { graph, codec: self.codec.clone(), consensus: self.consensus })
    }

    async fn mix(
        &self,
        context: &Context,
        state: &mut GossipState,
        x: &mut Buffer,
        round: u64,
    ) -> Result<()> {
        match self.gossip() {
            Some(gossip) => gossip.mix(context, state, x, round).await,
            None => context.mean(x).await,
        }
    }
}

impl Default for DPsgd {
    fn default() -> Self {
        DPsgd::with(Topology::Ring)
    }
}

impl Algorithm for DPsgd {
    type State = Mixture;

    fn about(&self) -> About {
        About::new(
            "d-psgd",
            Trigram { centralized: false, synchronous: true, full_precision: self.codec.is_none() },
        )
        .source("Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017")
        .period(self.interval)
        .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        let mut graph = self.graph();
        options.field("graph", &mut graph, or("all", any_graph()), "ranks to mix with, and weights")?;
        self.peers = graph.map_or(Peers::All, Peers::By);
        options.field("interval", &mut self.interval, 1.., "steps from one communication to the next")?;
        let about = "true if gossip follows the step, false if it overlaps with the passes";
        options.field("adapt-then-combine", &mut self.adapt_then_combine, truth(), about)?;
        codec_fields(&mut self.codec, &mut self.consensus, options)
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Mixture> {
        let room = if self.adapt_then_combine { 0 } else { bucket.len() };
        let x = &bucket.parameters;
        let mixture = context.comm().registered_on(&x.queue(), x.dtype(), room)?;
        let gossip = match (self.gossip(), &self.codec) {
            (Some(gossip), _) => gossip.state(context, x, 0).await?,
            (None, None) => GossipState::default(),
            (None, Some(codec)) => {
                let what = format!(
                    "peers are all, whose mean by all-reduce has no differences for {}",
                    codec.name()
                );
                return Err(Error::usage(what, "choose a graph, or an algorithm of encoded means"));
            }
        };
        Ok(Mixture { mixture, gossip })
    }

    async fn before_forward(&self, context: &Context, state: &mut Mixture, x: &Buffer) -> Result<()> {
        match context.round(self.interval) {
            Some(round) if !self.adapt_then_combine => {
                context.copy(x, &state.mixture)?;
                self.mix(context, &mut state.gossip, &mut state.mixture, round).await
            }
            _ => Ok(()),
        }
    }

    async fn after_backward(
        &self,
        context: &Context,
        state: &mut Mixture,
        bucket: &mut Bucket,
    ) -> Result<()> {
        if context.round(self.interval).is_some() && !self.adapt_then_combine {
            std::mem::swap(&mut state.mixture, &mut bucket.parameters);
        }
        Ok(())
    }

    async fn after_step(&self, context: &Context, state: &mut Mixture, bucket: &mut Bucket) -> Result<()> {
        match context.round(self.interval) {
            Some(round) if self.adapt_then_combine => {
                self.mix(context, &mut state.gossip, &mut bucket.parameters, round).await
            }
            _ => Ok(()),
        }
    }

    fn checkpoint(&self, state: &mut Mixture, fields: &mut Fields) -> Result<()> {
        state.gossip.checkpoint("known", fields)
    }
}
