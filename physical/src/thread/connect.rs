//! Connects threads: a table of mailboxes, one row a channel.

use super::endpoint::ThreadEndpoint;
use super::link::Mailbox;
use crate::error::{Peer, Result};
use crate::health::Health;
use crate::transport::{Traffic, Transport};
use crate::world::Fabric;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// What all threads of one world share.
struct Hub {
    size: usize,
    channels: Mutex<HashMap<u16, Vec<Arc<Mailbox>>>>,
}

/// One rank's access to the hub.
pub(crate) struct ThreadFabric {
    rank: usize,
    hub: Arc<Hub>,
    health: Arc<Health>,
    traffic: Arc<Traffic>,
}

impl ThreadFabric {
    /// The fabrics of all ranks of a new world.
    pub(crate) fn all(size: usize) -> Vec<Arc<ThreadFabric>> {
        let host: Arc<str> = rustix::system::uname().nodename().to_string_lossy().into();
        let pid = std::process::id();
        let peers = (0..size).map(|rank| Peer { rank, host: host.clone(), pid }).collect();
        let hub = Arc::new(Hub { size, channels: Mutex::default() });
        let health = Health::new(0, peers);
        let fabric = |rank| ThreadFabric {
            rank,
            hub: Arc::clone(&hub),
            health: Arc::new(health.of_rank(rank)),
            traffic: Arc::default(),
        };
        (0..size).map(|rank| Arc::new(fabric(rank))).collect()
    }
}

impl Fabric for ThreadFabric {
    fn open(&self, channel: u16) -> Result<Rc<dyn Transport>> {
        let mut channels = self.hub.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let mailboxes =
            channels.entry(channel).or_insert_with(|| (0..self.hub.size).map(|_| Arc::default()).collect());
        let health = Arc::clone(&self.health);
        let traffic = Arc::clone(&self.traffic);
        Ok(Rc::new(ThreadEndpoint::new(self.rank, mailboxes.clone(), health, traffic)))
    }

    fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    fn leave(&self) {
        self.health.leave(self.rank);
    }
}
