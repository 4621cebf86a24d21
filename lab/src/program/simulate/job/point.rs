//! A point to simulate: a cluster, and a number of steps.

use hexagram::physical::sim::{LinkSpec, Topology};
use std::sync::Arc;

/// Cluster of a job; each value of a sweep has its own.
#[derive(Debug, Clone)]
pub(crate) struct ClusterPoint {
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
    /// Link of the hosts whose own is not in the topology.
    pub(crate) link: LinkSpec,
    pub(crate) topology: Option<Arc<Topology>>,
}

impl ClusterPoint {
    /// Returns the link of the options. If each host of a topology has its own, returns the one with the least
    /// bandwidth.
    pub(crate) fn hosts_link(&self) -> LinkSpec {
        match &self.topology {
            Some(topology) if !topology.takes_link() => topology.narrowest(self.link),
            _ => self.link,
        }
    }
}

/// Number of simulated steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepCounts {
    /// Steps before those that count.
    pub(crate) warmup: u32,
    /// Steps that count.
    pub(crate) counted: u32,
}
