//! Decentralized SGD as in Bagua: parameters are averaged with few other ranks, hidden behind the forward and backward
//! pass.
//!
//! ```text
//! xᵢ ← Σⱼ wᵢⱼ xⱼ − γ gᵢ(xᵢ)          W of the round: pairs, one peer, all, or any schedule
//! ```
//!
//! This is [`DPsgd`] with other defaults, and with all parameters in one bucket; its notes on the optimizer and on
//! replicas apply. With hierarchical communication, hosts take the place of ranks, each with the mean of its ranks,
//! weighted by their number. Between communications, every `interval` steps, each rank steps on its own.
//!
//! | peers | bytes sent per rank and communication | replicas agree |
//! |---|---|---|
//! | `Topology::OnePeerExponential`, default | S | exactly after log₂ n rounds if n is a power of two; quickly otherwise |
//! | `Topology::XorPairs` | S; 0 while without a partner | the same; bit-equal partners |
//! | `Topology::ShiftOne`, Bagua's, n even | S | slowly for n ≥ 8: .77 to .98 per round at n = 8 to 32 |
//! | [`Peers::All`] | 2(n−1)/n · S | immediately |
//!
//! S: the size of the parameters; a step sends deg · S ÷ interval, deg being 1 except for [`Peers::All`], which sends
//! (n−1) · S if n · S ≤ 64 KiB. State: none; a mixture in progress takes S. Default: the one-peer exponential graph,
//! because it agrees fastest of those that send S, and every rank sends in every round for any n. Sources: Bagua (its
//! `decentralized`); Ying et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS
//! 2021.

pub use crate::d_psgd::Peers;
use crate::d_psgd::{DPsgd, Mixture};
use crate::plugin::{About, Algorithm, Bucket, Context};
use hexagram_logical::decentralized::{Topology, any_graph};
use hexagram_logical::options_text::{Options, or};
use hexagram_logical::{Buffer, Result};

/// Averages of parameters with one peer at a time, or all.
#[derive(Debug, Clone)]
pub struct Decentralized(DPsgd);

impl Decentralized {
    /// Creates the algorithm that averages with `peers` every `interval` steps, 1 or more.
    pub fn new(peers: impl Into<Peers>, interval: u64) -> Self {
        Decentralized(DPsgd { interval, ..DPsgd::with(peers) })
    }
}

impl Default for Decentralized {
    fn default() -> Self {
        Decentralized::new(Topology::OnePeerExponential, 1)
    }
}

impl Algorithm for Decentralized {
    type State = Mixture;

    fn about(&self) -> About {
        About {
            name: "decentralized",
            source: "Bagua; Ying et al., Exponential graph is provably efficient for decentralized deep training, NeurIPS 2021",
            ..self.0.about()
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        let mut graph = self.0.graph();
        options.field("graph", &mut graph, or("all", any_graph()), "ranks to mix with, and weights")?;
        self.0.peers = graph.map_or(Peers::All, Peers::By);
        options.field("interval", &mut self.0.interval, 1.., "steps from one communication to the next")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Mixture> {
        self.0.state(context, bucket).await
    }

    async fn before_forward(&self, context: &Context, mixture: &mut Mixture, x: &Buffer) -> Result<()> {
        self.0.before_forward(context, mixture, x).await
    }

    async fn after_backward(
        &self,
        context: &Context,
        mixture: &mut Mixture,
        bucket: &mut Bucket,
    ) -> Result<()> {
        self.0.after_backward(context, mixture, bucket).await
    }
}
