//! Facts about the world after all ranks have joined, with which a transport connects.

use crate::bootstrap::hosts::WorldHosts;
use crate::bootstrap::meeting::peer_info::PeerTable;
use crate::control::health::Health;
use crate::error::Error;
use crate::transport::Traffic;
use crate::waiting::spin_budget::crowded;
use std::sync::Arc;
use std::time::Duration;

/// All ranks of a world for a transport: their announcements, their hosts, their health.
pub struct Membership {
    pub(crate) rank: usize,
    pub(crate) peers: Arc<PeerTable>,
    /// By rank.
    pub(crate) announcements: Vec<Arc<[u8]>>,
    pub(crate) hosts: Arc<WorldHosts>,
    pub(crate) health: Arc<Health>,
    pub(crate) traffic: Arc<Traffic>,
    /// Longest wait for another rank to open the same channel.
    pub(crate) limit: Duration,
}

impl Membership {
    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.announcements.len()
    }

    /// Returns the announcement of the transport of a rank.
    ///
    /// # Panics
    /// If the rank is out of range.
    pub fn announcement(&self, rank: usize) -> &[u8] {
        &self.announcements[rank]
    }

    /// Returns the known state of the other ranks: an endpoint checks here for those that have failed or left.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Returns the counts to which every endpoint adds its messages.
    pub fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Returns the longest time to wait for another rank to open the same channel.
    pub fn join_deadline(&self) -> Duration {
        self.limit
    }

    /// Returns true if the ranks on this kernel outnumber its cores, so that waiting ranks should yield rather than
    /// spin.
    pub fn is_crowded(&self) -> bool {
        crowded(self.hosts.on_kernel_of(self.rank))
    }

    /// Returns secret bytes of the ranks of this job, for proofs on connections that a transport makes itself.
    /// Different values of `purpose` give different bytes.
    pub fn secret(&self, purpose: &str) -> [u8; 32] {
        self.peers.key.for_purpose(purpose)
    }

    /// Returns the same world with other announcements: a transport that is made of others gives each of them its part.
    pub(crate) fn announcing(&self, announcements: Vec<Arc<[u8]>>) -> Arc<Membership> {
        Arc::new(Membership {
            rank: self.rank,
            peers: Arc::clone(&self.peers),
            announcements,
            hosts: Arc::clone(&self.hosts),
            health: Arc::clone(&self.health),
            traffic: Arc::clone(&self.traffic),
            limit: self.limit,
        })
    }

    /// Returns the error of a rank whose announcement this transport cannot read.
    pub(crate) fn unreadable(&self, rank: usize) -> Error {
        let what = format!("the announcement of {} is malformed", self.health.peers()[rank]);
        Error::setup(what, "use the same build on all ranks")
    }
}
