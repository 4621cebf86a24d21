//! A point to simulate: a cluster, and a number of steps.

use hexagram::physical::sim::{LinkSpec, Topology};
use std::sync::Arc;

/// Cluster of a job; each value of a sweep has its own.
#[derive(Debug, Clone)]
pub(in crate::program) struct ClusterPoint {
    pub(in crate::program) ranks: usize,
    pub(in crate::program) hosts: usize,
    /// Link of the hosts whose own is not in the topology.
    pub(in crate::program) link: LinkSpec,
    pub(in crate::program) topology: Option<Arc<Topology>>,
}

impl ClusterPoint {
    /// Returns the link of the options. If each host of a topology has its own, returns the one with the least
    /// bandwidth.
    pub(in crate::program) fn hosts_link(&self) -> LinkSpec {
        match &self.topology {
            Some(topology) if !topology.takes_link() => topology.narrowest(self.link),
            _ => self.link,
        }
    }
}

/// Number of simulated steps.
#[derive(Debug, Clone, Copy)]
pub(in crate::program) struct StepCounts {
    /// Steps before those that count.
    pub(in crate::program) warmup: u32,
    /// Steps that count.
    pub(in crate::program) counted: u32,
}
