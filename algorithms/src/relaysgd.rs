//! RelaySGD: on a tree, ranks relay received parameters, so that the parameters of every rank reach all others with
//! full weight, but delayed.
//!
//! ```text
//! xᵢ ← optimizer(xᵢ, gᵢ)                     with this rank's own gradient
//! mᵢⱼ ← xᵢ + Σ m′ₖᵢ over neighbours k ≠ j    sent to neighbour j; m′: of the step before
//! xᵢ ← (xᵢ + Σ mⱼᵢ over neighbours j) / n
//! ```
//!
//! mⱼᵢ is the sum of the parameters of all ranks on the side of neighbour j of the tree; the parameters of a rank h
//! hops away are h − 1 steps old, and initially the common start. So xᵢ becomes the mean of all, with equal weights but
//! of different age; gossip gives nearby ranks more weight. Ranks reach the global optimum, whatever the differences in
//! their data, and an edge carries one message each way. Nothing overlaps with the passes. Replicas differ; evaluate
//! their mean.
//!
//! If all ranks have curvature L, it converges up to γ L = 1 + n/2 on any tree, where neighbours oscillate against each
//! other: a γ tuned with 8 ranks may diverge with 3. If curvatures differ, longer paths need a smaller γ.
//!
//! Bytes sent per rank and step: 2(n−1)/n · S on average, S being the size of the parameters: S to every neighbour.
//! State: m of every neighbour, and the same for the messages sent: 2 deg · S. Default: the binary tree, with paths of
//! at most 2 log₂ n hops. Its theory covers plain SGD; any optimizer can be used. Source: Vogels, He, Koloskova, Lin,
//! Karimireddy, Stich and Jaggi, "RelaySum for decentralized deep learning on heterogeneous data", NeurIPS 2021.

use crate::plugin::{About, Algorithm, Bucket, Buckets, Context, Fields, Needs, Trigram};
use hexagram_logical::options_text::{Options, one_of};
use hexagram_logical::{Buffer, Result};

/// Tree over which ranks relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    /// Each rank connected to the next.
    Chain,
    /// The parent of rank i is rank (i − 1) / 2, rounded down.
    Binary,
}

impl Tree {
    /// Returns the neighbours of a rank among `size`, in ascending order.
    pub fn neighbours(self, rank: usize, size: usize) -> Vec<usize> {
        let above = |rank: usize| match self {
            Tree::Chain => rank - 1,
            Tree::Binary => (rank - 1) / 2,
        };
        let joined = |other: usize| {
            let low = rank.min(other);
            let high = rank.max(other);
            low != high && above(high) == low
        };
        (0..size).filter(|other| joined(*other)).collect()
    }

    /// Returns the sum of `weights` on the side of `to` of its edge with `from`.
    fn behind(self, weights: &[f64], from: usize, to: usize) -> f64 {
        let others = self.neighbours(to, weights.len()).into_iter().filter(|other| *other != from);
        weights[to] + others.map(|other| self.behind(weights, to, other)).sum::<f64>()
    }
}

/// Means of the parameters by relays over a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelaySgd {
    /// Tree of the ranks, or of the hosts in hierarchical communication.
    pub tree: Tree,
}

impl Default for RelaySgd {
    fn default() -> Self {
        RelaySgd { tree: Tree::Binary }
    }
}

/// State of one bucket; empty on ranks that are not the leader of their host.
#[derive(Default)]
pub struct Relays {
    neighbours: Vec<usize>,
    /// Message of each neighbour in the last step.
    incoming: Vec<Buffer>,
    /// Message to each neighbour.
    outgoing: Vec<Buffer>,
}

impl Algorithm for RelaySgd {
    type State = Relays;

    fn about(&self) -> About {
        About::new("relaysgd", Trigram { centralized: false, synchronous: true, full_precision: true })
            .period(1)
            .source(
                "Vogels et al., RelaySum for decentralized deep learning on heterogeneous data, NeurIPS 2021",
            )
            // The relays contain parameters of earlier steps.
            .remembers_parameters(true)
            .needs(Needs { buckets: Buckets::Whole, parameters: true })
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        let trees = [("chain", Tree::Chain), ("binary", Tree::Binary)];
        options.field("tree", &mut self.tree, one_of(&trees), "tree of the ranks")
    }

    async fn state(&self, context: &Context, bucket: &Bucket) -> Result<Relays> {
        let Some((member, weights)) = context.shares() else { return Ok(Relays::default()) };
        let neighbours = self.tree.neighbours(member, weights.len());
        let mut relays = Relays { neighbours, ..Relays::default() };
        for neighbour in &relays.neighbours {
            let first = context.copy_of(&bucket.parameters)?;
            context.scale(self.tree.behind(&weights, member, *neighbour), &first)?;
            relays.incoming.push(first);
            relays.outgoing.push(context.zeros_like(&bucket.parameters)?);
        }
        Ok(relays)
    }

    async fn after_step(&self, context: &Context, relays: &mut Relays, bucket: &mut Bucket) -> Result<()> {
        let Relays { neighbours, incoming, outgoing } = relays;
        let relay = async |comm: &hexagram_logical::Communicator, x: &mut Buffer| {
            for (to, message) in outgoing.iter().enumerate() {
                let others = incoming.iter().enumerate().filter(|(from, _)| *from != to);
                let terms: Vec<_> = others.map(|(_, heard)| (1.0, heard)).chain([(1.0, &*x)]).collect();
                context.combine(0.0, message, &terms)?;
            }
            comm.neighbour_exchange(neighbours, outgoing, incoming).await?;
            let share = 1.0 / comm.size() as f64;
            let terms: Vec<_> = incoming.iter().map(|heard| (share, heard)).collect();
            context.combine(share, x, &terms)
        };
        context.among_hosts(&mut bucket.parameters, relay).await
    }

    fn checkpoint(&self, relays: &mut Relays, fields: &mut Fields) -> Result<()> {
        let messages = relays.neighbours.iter().zip(&mut relays.incoming);
        messages.into_iter().try_for_each(|(from, heard)| fields.buffer(&format!("from-{from}"), heard))
    }
}
