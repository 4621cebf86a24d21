//! Connects the ranks of a simulated cluster, whose peers are known from the start.

use super::endpoint::{RankBell, SimEndpoint, Tallies};
use super::schedule::Simulator;
use crate::control::health::Health;
use crate::error::{Peer, Result};
use crate::transport::{Backend, Bell, Fabric, Membership, Prepared, Site, Traffic, Transport};
use std::rc::Rc;
use std::sync::Arc;

/// Opens channels of one rank.
pub(super) struct SimFabric {
    bell: Arc<RankBell>,
    health: Arc<Health>,
    traffic: Arc<Traffic>,
}

/// Knowledge of ranks about each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// All ranks see the state of each rank immediately, like threads of a process.
    Shared,
    /// Each rank sees only reported state, like processes.
    OfEach,
}

impl SimFabric {
    /// Creates the fabrics of all ranks of a new world with the given hosts. `knowledge` defines what ranks see of
    /// each other.
    pub(super) fn all(
        hosts: &[usize],
        schedule: &Arc<Simulator>,
        knowledge: Knowledge,
    ) -> Vec<Arc<SimFabric>> {
        let peers: Vec<Peer> = hosts.iter().enumerate().map(|(rank, host)| peer(rank, *host)).collect();
        let shared = Health::new(0, peers.clone());
        let fabric = |rank| {
            let health = Arc::new(match knowledge {
                Knowledge::Shared => shared.of_rank(rank),
                Knowledge::OfEach => Health::new(rank, peers.clone()),
            });
            Arc::new(Self::of(rank, schedule, health, Arc::default()))
        };
        (0..hosts.len()).map(fabric).collect()
    }

    /// Creates the fabric of a rank.
    fn of(rank: usize, schedule: &Arc<Simulator>, health: Arc<Health>, traffic: Arc<Traffic>) -> Self {
        let bell = Arc::new(RankBell { rank, schedule: Arc::clone(schedule) });
        let rung: Arc<dyn Bell> = bell.clone();
        health.wake(Arc::downgrade(&rung));
        SimFabric { bell, health, traffic }
    }
}

/// Returns the name of a rank and of its process.
pub(super) fn peer(rank: usize, host: usize) -> Peer {
    Peer { rank, host: format!("host{host}").into(), pid: rank as u32 }
}

/// The transport for start-up, where the ranks of a simulated cluster meet like processes.
pub(super) struct SimBackend(pub(super) Arc<Simulator>);

impl Backend for SimBackend {
    fn prepare(&self, _: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(PreparedRank(Arc::clone(&self.0))))
    }
}

/// A rank of a simulated cluster that has not met the others.
struct PreparedRank(Arc<Simulator>);

impl Prepared for PreparedRank {
    fn announcement(&self) -> Vec<u8> {
        Vec::new()
    }

    fn connect(self: Box<Self>, member: Arc<Membership>) -> Result<Arc<dyn Fabric>> {
        let health = Arc::clone(member.health());
        let traffic = Arc::clone(member.traffic());
        Ok(Arc::new(SimFabric::of(member.rank(), &self.0, health, traffic)))
    }
}

impl Fabric for SimFabric {
    fn open(&self, channel: u16, _ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        let tallies = Tallies::of(&self.traffic);
        let bell = Arc::clone(&self.bell);
        let health = Arc::clone(&self.health);
        Ok(Rc::new(SimEndpoint::new(channel, bell, health, tallies)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    fn leave(&self) {
        self.health.leave(self.bell.rank);
        self.bell.schedule.close(self.bell.rank);
    }
}
