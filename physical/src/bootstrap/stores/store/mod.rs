//! Start-up through a key-value store that all ranks already reach, such as that of PyTorch: rank 0 listens at a free
//! address and writes it to the store, so that users need not choose a port.
//!
//! ```text
//! hexagram/rank/R       entry = PRESENT:u32 network:text addresses:136     rank R, for rank 0, which removes it
//!                            | FAILED:u32 reason:text                     rank R does not join
//! hexagram/rank/0       name:text, as an error gives it                   rank 0, which removes it, to find another one
//! hexagram/rendezvous   announcement, as in `announcement`                rank 0, which removes it once all have joined
//! ```
//!
//! The announcement contains the secret of the job: any process that can read the store can join, unless all ranks also have
//! the file of HEXAGRAM_SECRET_FILE. It is removed after use, so that the same ranks can also meet again through the same
//! store.

use crate::bootstrap::handshake::message::{MessageReader, MessageWriter, malformed};
use crate::bootstrap::meeting::announcement;
use crate::bootstrap::meeting::announcement::Surroundings;
use crate::bootstrap::meeting::peer_info::boot;
use crate::bootstrap::private_file::read_given;
use crate::bootstrap::sockets::local::network_namespace;
use crate::bootstrap::sockets::reachable;
use crate::bootstrap::sockets::stream::Listener;
use crate::bootstrap::variables::{Launcher, Placement};
use crate::error::{Error, Result};
use crate::system::environment::variable;
use crate::waiting::stopwatch::Stopwatch;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Key of the announcement of rank 0.
pub(crate) const RENDEZVOUS: &str = "hexagram/rendezvous";
/// Time after which a rank that waits for another one logs the wait.
pub(crate) const LATE: Duration = Duration::from_secs(10);
/// Time by which a store may return early.
const EARLY: Duration = Duration::from_millis(500);
/// Remedy for a missing rank.
const ABSENT: &str = "check that that rank has started, and that the store is reachable";
/// Kind of the entry of a rank that is present.
const PRESENT: usize = 0;
/// Kind of the entry of a rank that does not join.
const FAILED: usize = 1;

/// Key-value store that all ranks of a job reach, for [`World::join_through`](crate::World::join_through). While its
/// ranks meet, each world needs separate keys: a store of its own, or a prefix for each key.
///
/// Any process that can read the store can join the job, since it contains the secret; any process that can write it
/// can redirect the ranks. Many stores, including that of PyTorch, grant both to all processes that reach their port.
/// If HEXAGRAM_SECRET_FILE names the same secret on all ranks, they prove that as well, and access to the store alone
/// is useless.
pub trait Store {
    /// Sets a key to a value, replacing its current value.
    ///
    /// # Errors
    /// Fails if the store cannot be reached.
    fn put(&self, key: &str, value: &[u8]) -> io::Result<()>;

    /// Returns the value of a key. Waits at most `limit` if the key has none.
    ///
    /// # Errors
    /// Fails if the store cannot be reached, or the key has no value within `limit`.
    fn get(&self, key: &str, limit: Duration) -> io::Result<Vec<u8>>;

    /// Removes a key, if it exists.
    ///
    /// # Errors
    /// Fails if the store cannot be reached.
    fn remove(&self, key: &str) -> io::Result<()>;
}

/// Rank that meets the others through a store.
pub(crate) struct StoreMeeting<'a> {
    /// The store.
    pub(crate) store: &'a dyn Store,
    /// This rank.
    pub(crate) rank: usize,
    /// Number of ranks.
    pub(crate) size: usize,
    /// Longest wait for the others.
    pub(crate) limit: Duration,
    /// Time after which a wait is logged.
    pub(crate) late: Duration,
}

/// Result of a meeting through a store; on rank 0, with the announcement that the others wait for.
pub(crate) struct Met {
    /// Placement of this rank. The ranks of each host have not been counted yet.
    pub(crate) placement: Placement,
    /// Listener of rank 0.
    pub(crate) listener: Option<Listener>,
    /// Announcement of rank 0, to write once rank 0 is ready.
    pub(crate) announcement: Vec<u8>,
}

impl StoreMeeting<'_> {
    /// Meets the other ranks: rank 0 opens a listener, at the address `asked` if the ranks are on several hosts, and
    /// the others wait for its announcement.
    ///
    /// # Errors
    /// [`Error::System`] if the store fails, or a rank is late; [`Error::Setup`] if a rank has failed.
    pub(crate) fn meet(&self, asked: Option<SocketAddr>) -> Result<Met> {
        let (announcement, listener) = match self.rank {
            0 => {
                let (one_host, peers) = self.collect_cards()?;
                let surroundings = Surroundings { one_host, asked, peers: &peers };
                let (listener, announcement) = announcement::open(&surroundings)?;
                (announcement, Some(listener))
            }
            _ => {
                self.put(&card(self.rank), &present())?;
                (self.get(RENDEZVOUS, self.limit, || "find the address of rank 0".to_owned())?, None)
            }
        };
        let (rendezvous, mut secret) = announcement::read(&announcement)?;
        // Readers of the store do not have it.
        if let Some(path) = variable("HEXAGRAM_SECRET_FILE") {
            secret.extend(read_given(&path)?);
        }
        let StoreMeeting { rank, size, .. } = *self;
        let launcher = Launcher::Store;
        let placement =
            Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
        Ok(Met { placement, listener, announcement })
    }

    /// Writes the announcement of rank 0; no effect on other ranks.
    ///
    /// # Errors
    /// [`Error::System`] if the store fails.
    pub(crate) fn announce(&self, announcement: &[u8]) -> Result<()> {
        if self.rank == 0 { self.put(RENDEZVOUS, announcement) } else { Ok(()) }
    }

    /// Removes the announcement of rank 0, which all ranks have read; no effect on other ranks.
    pub(crate) fn clear(&self) {
        if self.rank == 0
            && let Err(cause) = self.store.remove(RENDEZVOUS)
        {
            tracing::warn!("the secret of this job stays in the store, as it cannot be removed: {cause}");
        }
    }

    /// Notifies the others that this rank does not join. For a rank that has not yet written its entry.
    pub(crate) fn give_up(&self, error: &Error) {
        let (key, failure) = match self.rank {
            0 => (RENDEZVOUS.to_owned(), announcement::failure(error)),
            rank => (card(rank), failed(error)),
        };
        // Without the store, they detect the missing rank at the deadline.
        let _ = self.store.put(&key, &failure);
    }

    /// Reads the entries of all other ranks, and removes them. Returns whether all are on this host, and all addresses.
    fn collect_cards(&self) -> Result<(bool, Vec<IpAddr>)> {
        // The store is called once for each rank.
        let mut waited = Stopwatch::with_gap(self.limit);
        let own = name_of_leader();
        self.put(&card(0), own.as_bytes())?;
        let here = network();
        let mut one_host = true;
        let mut addresses = Vec::new();
        for rank in 1..self.size {
            let left = self.limit.saturating_sub(waited.elapsed());
            let bytes = self
                .get(&card(rank), left, || format!("find rank {rank} of {}", self.size))
                .map_err(|missing| self.find_other_leader(&own, rank).unwrap_or(missing))?;
            let (network, reached) = read_card(rank, &bytes)?;
            one_host &= network == here;
            addresses.extend(reached);
            // An entry that stays is equally valid for the next world.
            let _ = self.store.remove(&card(rank));
        }
        let _ = self.store.remove(&card(0));
        Ok((one_host, addresses))
    }

    /// Returns the error for two ranks 0, if another one has overwritten the name of this one. The other process finds this
    /// error in place of the entry of the rank for which both wait.
    fn find_other_leader(&self, own: &str, awaited: usize) -> Option<Error> {
        let other = self.store.get(&card(0), EARLY).ok()?;
        let other = String::from_utf8_lossy(&other);
        if other == own {
            return None;
        }
        let error = Error::setup(
            format!("{own} and {other} are both rank 0 of this job"),
            "start each process with a different rank",
        );
        let _ = self.store.put(&card(awaited), &failed(&error));
        Some(error)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(|cause| {
            Error::system(
                format!("write {key} to the store of the job"),
                cause,
                "check the store and its address",
            )
        })
    }

    fn get(&self, key: &str, left: Duration, doing: impl Fn() -> String) -> Result<Vec<u8>> {
        self.get_or_warn(key, left, &doing).map_err(|cause| {
            let doing = format!("{} in the store of the job within {:?}", doing(), self.limit);
            Error::system(doing, cause, ABSENT)
        })
    }

    /// Returns the value of a key like the store, and warns if it is late.
    fn get_or_warn(&self, key: &str, left: Duration, doing: impl Fn() -> String) -> io::Result<Vec<u8>> {
        let mut waited = Stopwatch::with_gap(left);
        let patience = left.min(self.late);
        let found = self.store.get(key, patience);
        let rest = left.saturating_sub(waited.elapsed());
        // An unreachable store fails earlier.
        if found.is_ok() || rest.is_zero() || waited.elapsed() + EARLY < patience {
            return found;
        }
        let (rank, doing) = (self.rank, doing());
        tracing::warn!(
            "rank {rank} waits to {doing} in the store of the job, for a further {rest:.0?}; {ABSENT}"
        );
        self.store.get(key, rest)
    }
}

/// Returns the key of a rank's entry.
fn card(rank: usize) -> String {
    format!("hexagram/rank/{rank}")
}

/// Returns a unique name of this process as a rank 0.
fn name_of_leader() -> String {
    static LEADERS: AtomicU64 = AtomicU64::new(1);
    let host = rustix::system::uname();
    let number = LEADERS.fetch_add(1, Ordering::Relaxed);
    format!("pid {} on {} (world {number})", std::process::id(), host.nodename().to_string_lossy())
}

/// Returns the entry of a rank that does not join.
fn failed(error: &Error) -> Vec<u8> {
    MessageWriter::default().number(FAILED).text(&error.to_string()).whole()
}

/// Returns the name of the network in which processes reach each other's unix sockets.
fn network() -> String {
    format!("{} {}", boot().trim(), network_namespace())
}

/// Returns the entry of this process.
fn present() -> Vec<u8> {
    let addresses = reachable::to_bytes(&reachable::own());
    MessageWriter::default().number(PRESENT).text(&network()).blob(&addresses).whole()
}

/// Decodes the entry of a rank: its network, and the addresses of its host.
fn read_card(rank: usize, card: &[u8]) -> Result<(String, Vec<IpAddr>)> {
    let parse = || -> io::Result<Result<(String, Vec<IpAddr>)>> {
        let mut message = MessageReader::receive(&mut &*card)?;
        match message.number()? {
            PRESENT => {
                let network = message.text()?;
                Ok(Ok((network, reachable::from_bytes(message.blob(reachable::BYTES)?))))
            }
            FAILED => {
                let what = format!("rank {rank} does not join: {}", message.text()?);
                Ok(Err(Error::setup(what, format!("see the error of rank {rank}"))))
            }
            _ => Err(malformed()),
        }
    };
    parse().unwrap_or_else(|cause| {
        let doing = format!("read the entry of rank {rank} in the store");
        Err(Error::system(doing, cause, "use the same build on all ranks"))
    })
}

#[cfg(test)]
mod tests;
