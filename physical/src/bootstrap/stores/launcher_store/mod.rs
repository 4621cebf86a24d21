//! The key-value store of a launcher, through which ranks on several hosts meet without an address: PMI of MPICH,
//! Intel MPI, MVAPICH and `srun --mpi=pmi2`, PMIx of Open MPI, PRRTE and `srun --mpi=pmix`.
//!
//! ```text
//! every rank but 0   writes its entry
//! all ranks          a fence, after which what was written before can be read
//! rank 0             reads the cards, listens at an address that all reach, and writes the announcement
//! all ranks          a fence
//! every rank but 0   reads the announcement
//! ```
//!
//! Only processes of the job reach such a store, so that it may contain the secret of the job.

mod pmi;
mod pmix;

use super::store::RENDEZVOUS;
use crate::bootstrap::Store;
use crate::bootstrap::handshake::{from_hex, hex};
use crate::bootstrap::variables::Placement;
use crate::error::Result;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Fence after which the entries can be read, and the fence after which the announcement can be read.
const CARDS: u32 = 1;
const ANNOUNCEMENT: u32 = 2;

/// Interface of a launcher to its processes. A value is a text without spaces.
trait Manager: Send {
    /// Writes a value, which other ranks can read after the next fence.
    fn put(&mut self, key: &str, value: &str) -> io::Result<()>;

    /// Waits until all ranks have called it, at most `limit`. After that, it can be called again to continue the
    /// wait.
    fn fence(&mut self, limit: Duration) -> io::Result<()>;

    /// Returns the value that rank `owner` wrote before a fence.
    fn get(&mut self, owner: usize, key: &str, limit: Duration) -> io::Result<String>;
}

/// Returns rank, size and the name of the launcher store, if the ranks of this process meet through it.
///
/// # Errors
/// As [`Placement::from_env`].
pub fn meets_through_store() -> Result<Option<(usize, usize, &'static str)>> {
    let found = Placement::without_address()?.zip(Offer::of_environment());
    Ok(found.map(|((rank, size), offer)| (rank, size, offer.name())))
}

/// The store that a launcher provides to this process.
enum Offer {
    Pmi(pmi::Pmi),
    Pmix,
}

impl Offer {
    fn of_environment() -> Option<Self> {
        pmi::Pmi::of_environment().map(Offer::Pmi).or_else(|| pmix::is_offered().then_some(Offer::Pmix))
    }

    fn name(&self) -> &'static str {
        match self {
            Offer::Pmi(_) => "PMI",
            Offer::Pmix => "PMIx",
        }
    }

    fn open(self, limit: Duration) -> Result<Box<dyn Manager>> {
        Ok(match self {
            Offer::Pmi(pmi) => Box::new(pmi),
            Offer::Pmix => Box::new(pmix::Pmix::open(limit)?),
        })
    }
}

/// Store of the launcher that started this process, for one meeting.
pub(crate) struct LauncherStore {
    state: Mutex<StoreState>,
    /// Number of this meeting in the process, the same on all ranks.
    meeting: u64,
    limit: Duration,
}

struct StoreState {
    manager: Box<dyn Manager>,
    /// Number of fences so far.
    fences: u32,
    /// True if the last fence has failed.
    has_failed: bool,
}

impl LauncherStore {
    /// Opens the store of the launcher, if it has one. Waits at most `limit` for the other ranks.
    ///
    /// # Errors
    /// [`Error::Setup`](crate::Error::Setup) if a library of the launcher cannot be loaded, or returns an error.
    pub(crate) fn open(limit: Duration) -> Result<Option<Self>> {
        static MEETINGS: AtomicU64 = AtomicU64::new(0);
        let Some(offer) = Offer::of_environment() else { return Ok(None) };
        let manager = offer.open(limit)?;
        Ok(Some(Self::over(manager, MEETINGS.fetch_add(1, Ordering::Relaxed), limit)))
    }

    fn over(manager: Box<dyn Manager>, meeting: u64, limit: Duration) -> Self {
        LauncherStore {
            state: Mutex::new(StoreState { manager, fences: 0, has_failed: false }),
            meeting,
            limit,
        }
    }

    /// Takes part in the remaining fences, since the other ranks wait for them. Call it after each meeting, even a failed one.
    pub(crate) fn finish(&self) {
        // A rank that has waited in vain does not wait again, and the error of the launcher has been reported before.
        let _ = self.with(|state| match state.has_failed {
            true => Ok(()),
            false => state.reach(ANNOUNCEMENT, self.limit),
        });
    }

    fn with<R>(&self, work: impl FnOnce(&mut StoreState) -> io::Result<R>) -> io::Result<R> {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn key(&self, key: &str) -> String {
        format!("{key}/{}", self.meeting)
    }
}

impl StoreState {
    fn reach(&mut self, fence: u32, limit: Duration) -> io::Result<()> {
        while self.fences < fence {
            let outcome = self.manager.fence(limit);
            self.has_failed = outcome.is_err();
            outcome?;
            self.fences += 1;
        }
        Ok(())
    }
}

impl Store for LauncherStore {
    fn put(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let is_last = key == RENDEZVOUS;
        self.with(|state| {
            if is_last {
                state.reach(CARDS, self.limit)?;
            }
            state.manager.put(&self.key(key), &hex(value))?;
            if is_last { state.reach(ANNOUNCEMENT, self.limit) } else { Ok(()) }
        })
    }

    fn get(&self, key: &str, limit: Duration) -> io::Result<Vec<u8>> {
        let owner = key.rsplit('/').next().and_then(|rank| rank.parse().ok()).unwrap_or(0);
        let fence = if key == RENDEZVOUS { ANNOUNCEMENT } else { CARDS };
        self.with(|state| {
            state.reach(fence, limit)?;
            from_hex(&state.manager.get(owner, &self.key(key), limit)?)
        })
    }

    /// Has no effect: the store ends with the job.
    fn remove(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
