//! The result of the rendezvous, which every transport between processes builds on.

use super::hosts::Hosts;
use super::peer_info::{PeerInfo, PeerTable};
use crate::health::Health;
use crate::transport::Traffic;
use std::sync::Arc;
use std::time::Duration;

/// Everything that a rank knows of its world once all have joined.
pub(crate) struct Membership {
    /// This rank.
    pub(crate) rank: usize,
    /// Table of all ranks, and the key of their data connections.
    pub(crate) peers: PeerTable,
    /// Hosts of the ranks.
    pub(crate) hosts: Arc<Hosts>,
    /// Failures, departures and heartbeats of the ranks.
    pub(crate) health: Arc<Health>,
    /// Counters of the bytes that this rank sends.
    pub(crate) traffic: Arc<Traffic>,
    /// Longest time to wait for another rank to open the same channel.
    pub(crate) limit: Duration,
}

impl Membership {
    /// Returns the number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.peers.infos.len()
    }

    /// Returns the fields of `rank`.
    pub(crate) fn info(&self, rank: usize) -> &PeerInfo {
        &self.peers.infos[rank]
    }

    /// Returns the fields of this rank.
    pub(crate) fn mine(&self) -> &PeerInfo {
        self.info(self.rank)
    }
}
