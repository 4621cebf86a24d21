//! One generation, as one of its processes sees it, and the store through which its ranks meet.

use super::link::MembershipLink;
use super::messages::MemberRequest;
use crate::bootstrap::Store;
use crate::control::health::Health;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Processes of one world.
pub(crate) struct Generation {
    /// Its number, from 1.
    pub(crate) number: u64,
    /// Rank of this process.
    pub(crate) rank: usize,
    /// Number of ranks.
    pub(crate) size: usize,
    link: Arc<MembershipLink>,
    state: Mutex<GenerationState>,
}

#[derive(Default)]
struct GenerationState {
    /// The first change: the rank that died or left, and the cause.
    change: Option<(Option<usize>, String)>,
    /// Health of the world, once its ranks have met.
    health: Weak<Health>,
}

impl Generation {
    pub(super) fn new(number: u64, rank: usize, size: usize, link: Arc<MembershipLink>) -> Self {
        let state = Mutex::new(GenerationState { change: None, health: Weak::new() });
        Generation { number, rank, size, link, state }
    }

    fn state(&self) -> MutexGuard<'_, GenerationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true once the members of this generation change.
    pub(crate) fn is_over(&self) -> bool {
        self.state().change.is_some()
    }

    /// Waits until the members change, at most `limit`. Returns true if they have.
    pub(crate) fn ends_within(&self, limit: Duration) -> bool {
        self.link.wait_while(limit, |_| !self.is_over());
        self.is_over()
    }

    /// Records the first change, and ends the operations of the world.
    pub(crate) fn end(&self, culprit: Option<usize>, cause: &str) {
        let mut state = self.state();
        if state.change.is_some() {
            return;
        }
        let culprit = culprit.filter(|rank| *rank < self.size);
        state.change = Some((culprit, cause.to_owned()));
        let health = state.health.upgrade();
        drop(state);
        if let Some(health) = health {
            health.record_change(culprit, cause);
        }
    }

    /// Ends the operations of the world with this health from now on, at a change.
    pub(crate) fn attach(&self, health: &Arc<Health>) {
        let mut state = self.state();
        state.health = Arc::downgrade(health);
        let change = state.change.clone();
        drop(state);
        if let Some((culprit, cause)) = change {
            health.record_change(culprit, &cause);
        }
    }

    /// Reports to the launcher that a rank has failed, as the ranks have found.
    pub(crate) fn report_failed(&self, rank: usize) {
        // Without the launcher, this process ends.
        let _ = self.link.send(&MemberRequest::Failed { generation: self.number, rank });
    }

    /// Returns the launcher's connection.
    pub(crate) fn link(&self) -> &Arc<MembershipLink> {
        &self.link
    }
}

/// The launcher keeps the values of the newest generation only.
impl Store for Generation {
    fn put(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let (key, value) = (key.to_owned(), value.to_vec());
        self.link.send(&MemberRequest::Put { generation: self.number, key, value })
    }

    fn get(&self, key: &str, limit: Duration) -> io::Result<Vec<u8>> {
        let request = self.link.next_request();
        self.link.send(&MemberRequest::Get { generation: self.number, request, key: key.to_owned() })?;
        let answer = self.link.wait_while(limit, |state| !state.is_answered() && !self.is_over());
        match answer {
            _ if self.is_over() => Err(io::Error::other("the members of the job change")),
            Some(value) => Ok(value),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn remove(&self, key: &str) -> io::Result<()> {
        self.link.send(&MemberRequest::Remove { generation: self.number, key: key.to_owned() })
    }
}
