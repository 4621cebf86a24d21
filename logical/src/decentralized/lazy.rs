//! Lazy graphs: ranks move only a share of the way to the mean of their neighbours. For rules that need weights
//! without negative eigenvalues, which a share of 1/2 ensures.

use super::mixing::Mixing;
use super::schedule::Schedule;
use super::topology::any_graph;
use crate::Result;
use crate::options_text::{Options, above};
use std::sync::Arc;

/// Graph with the weights `share · W + (1 − share) · I`, where W are those of the inner graph.
///
/// ```
/// use hexagram_logical::decentralized::{Lazy, Schedule, Topology};
/// use std::sync::Arc;
///
/// let lazy = Lazy { graph: Arc::new(Topology::Complete), share: 0.5 };
/// assert_eq!(lazy.mixing(2, 0)?.dense(), [0.75, 0.25, 0.25, 0.75]);
/// # Ok::<(), hexagram_logical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Lazy {
    /// Inner graph, with the weights W.
    pub graph: Arc<dyn Schedule>,
    /// Share of the way, above 0 and at most 1.
    pub share: f64,
}

impl Schedule for Lazy {
    fn mixing(&self, size: usize, step: u64) -> Result<Mixing> {
        self.check_options()?;
        let mixing = self.graph.mixing(size, step)?;
        let own = |rank| self.share * mixing.weight(rank, rank) + (1.0 - self.share);
        Ok(mixing.reweighted((0..mixing.size()).map(own).collect(), |_, _, weight| self.share * weight))
    }

    fn is_static(&self, size: usize) -> Result<bool> {
        self.graph.is_static(size)
    }

    fn check_options(&self) -> Result<()> {
        let mut own = self.clone();
        Options::check("lazy", |options| {
            options.field("graph", &mut own.graph, any_graph(), "graph with the weights W")?;
            options.field("share", &mut own.share, above(0.0).up_to(1.0), "share of the way")
        })
    }
}
