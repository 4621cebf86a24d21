//! Connects the ranks of a simulated cluster, which know each other from the start.

use super::endpoint::{RankBell, SimEndpoint};
use super::schedule::Simulator;
use crate::error::{Peer, Result};
use crate::health::Health;
use crate::transport::{Bell, Fabric, Traffic, Transport, TransportKind};
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
    /// All know at once what one does, as threads of a process.
    Shared,
    /// Each knows what it has been told, as processes.
    OfEach,
}

impl SimFabric {
    /// Creates the fabrics of all ranks of a new world, whose hosts are given. They know of each other what `knowledge`
    /// says.
    pub(super) fn all(
        hosts: &[usize],
        schedule: &Arc<Simulator>,
        knowledge: Knowledge,
    ) -> Vec<Arc<SimFabric>> {
        let peer = |(rank, host): (usize, &usize)| Peer {
            rank,
            host: format!("host{host}").into(),
            pid: rank as u32,
        };
        let peers: Vec<Peer> = hosts.iter().enumerate().map(peer).collect();
        let shared = Health::new(0, peers.clone());
        let fabric = |rank| {
            let bell = Arc::new(RankBell { rank, schedule: Arc::clone(schedule) });
            let health = Arc::new(match knowledge {
                Knowledge::Shared => shared.of_rank(rank),
                Knowledge::OfEach => Health::new(rank, peers.clone()),
            });
            let rung: Arc<dyn Bell> = bell.clone();
            health.wake(Arc::downgrade(&rung));
            Arc::new(SimFabric { bell, health, traffic: Arc::default() })
        };
        (0..hosts.len()).map(fabric).collect()
    }
}

impl Fabric for SimFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let tally = self.traffic.tally(TransportKind::Sim);
        let bell = Arc::clone(&self.bell);
        let health = Arc::clone(&self.health);
        Ok(Rc::new(SimEndpoint::new(channel, bell, health, tally)))
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
