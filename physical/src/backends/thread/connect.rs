//! Connects threads by a table of mailboxes, one row for each channel.

use super::endpoint::ThreadEndpoint;
use super::link::ThreadMailbox;
use crate::control::health::Health;
use crate::error::{Error, Peer, Result};
use crate::transport::{Backend, Fabric, Prepared, Site, Traffic, Transport, TransportKind};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Transport of threads. Their peers are known from the start, so that ranks do not join.
pub(crate) struct ThreadBackend;

impl Backend for ThreadBackend {
    fn prepare(&self, _site: &Site<'_>) -> Result<Box<dyn Prepared>> {
        Err(Error::setup(
            "the thread transport connects threads of one process, not processes",
            "use mixed, shm or tcp, or start the ranks with World::threads",
        ))
    }
}

/// Mailboxes that all threads of one world share.
struct MailboxTable {
    size: usize,
    channels: Mutex<HashMap<u16, Vec<Arc<ThreadMailbox>>>>,
}

/// Opens channels of one rank.
pub(crate) struct ThreadFabric {
    rank: usize,
    table: Arc<MailboxTable>,
    health: Arc<Health>,
    traffic: Arc<Traffic>,
}

impl ThreadFabric {
    /// Creates the fabrics of all ranks of a new world.
    pub(crate) fn all(size: usize) -> Vec<Arc<ThreadFabric>> {
        let host: Arc<str> = match cfg!(miri) {
            // Miri implements too little of the result of the system call.
            true => "miri".into(),
            false => rustix::system::uname().nodename().to_string_lossy().into(),
        };
        let pid = std::process::id();
        let peers = (0..size).map(|rank| Peer { rank, host: host.clone(), pid }).collect();
        let table = Arc::new(MailboxTable { size, channels: Mutex::default() });
        let health = Health::new(0, peers);
        let fabric = |rank| ThreadFabric {
            rank,
            table: Arc::clone(&table),
            health: Arc::new(health.of_rank(rank)),
            traffic: Arc::default(),
        };
        (0..size).map(|rank| Arc::new(fabric(rank))).collect()
    }
}

impl Fabric for ThreadFabric {
    fn open(&self, channel: u16, _ranks: &[usize]) -> Result<Rc<dyn Transport>> {
        let mut channels = self.table.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let mailboxes =
            channels.entry(channel).or_insert_with(|| (0..self.table.size).map(|_| Arc::default()).collect());
        let health = Arc::clone(&self.health);
        let tally = self.traffic.tally(TransportKind::Thread);
        Ok(Rc::new(ThreadEndpoint::new(self.rank, mailboxes.clone(), health, tally)))
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
