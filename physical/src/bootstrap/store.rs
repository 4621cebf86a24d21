//! Start-up through a key-value store that all ranks reach already, such as that of PyTorch: rank 0 listens at a free
//! address and leaves it there, so that nobody has to choose a port.
//!
//! ```text
//! hexagram/rank/R       card = PRESENT:u32 network:text addresses:136     rank R, for rank 0, which removes it
//!                            | FAILED:u32 reason:text                     rank R does not join
//! hexagram/rank/0       name:text, as an error gives it                   rank 0, which removes it, to find another one
//! hexagram/rendezvous   announcement, as in `announcement`                rank 0, which removes it once all have joined
//! ```
//!
//! The announcement holds the secret of the job: whoever can read the store can join, unless all ranks also have the
//! file that HEXAGRAM_SECRET_FILE names. It is removed so that it is there no longer than it has to be, and so that the
//! same ranks can meet through the same store again.

use super::announcement::{self, Surroundings};
use super::local::network_namespace;
use super::message::{Incoming, Outgoing, malformed};
use super::peer_info::boot;
use super::private_file::read_given;
use super::reachable;
use super::stream::Listener;
use super::variables::{Launcher, Placement};
use crate::environment::variable;
use crate::error::{Error, Result};
use crate::stopwatch::Stopwatch;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Key of rank 0's announcement.
pub(super) const RENDEZVOUS: &str = "hexagram/rendezvous";
/// Time after which a rank that waits for another says so.
pub(crate) const LATE: Duration = Duration::from_secs(10);
/// Time by which a store may be early.
const EARLY: Duration = Duration::from_millis(500);
/// What to do about a rank that is not there.
const ABSENT: &str = "see whether that rank has started, and whether the store can be reached";
/// Kind of the card of a rank that is there.
const PRESENT: usize = 0;
/// Kind of the card of a rank that does not join.
const FAILED: usize = 1;

/// Key-value store that all ranks of a job reach, for [`World::join_through`](crate::World::join_through). Each world
/// needs keys of its own while its ranks meet: a store of its own, or a prefix in front of each key.
///
/// Whoever can read the store can join the job, as its secret is in it; whoever can write it can lead the ranks
/// elsewhere. Many stores, that of PyTorch among them, let everyone do both who reaches their port. Where HEXAGRAM_SECRET_FILE
/// names the same secret on all ranks, they prove that as well, and the store alone is of no use to anybody.
pub trait Store {
    /// Sets a key to a value, in place of the one that it has.
    ///
    /// # Errors
    /// Fails if the store cannot be reached.
    fn put(&self, key: &str, value: &[u8]) -> io::Result<()>;

    /// Returns the value of a key, for which it waits at most `limit` if the key has none.
    ///
    /// # Errors
    /// Fails if the store cannot be reached, or the key has no value within `limit`.
    fn get(&self, key: &str, limit: Duration) -> io::Result<Vec<u8>>;

    /// Removes a key, if it is there.
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
    /// Time after which a wait is told.
    pub(crate) late: Duration,
}

/// Place at which the ranks of a store meet; on rank 0 with what the others wait for.
pub(crate) struct Met {
    /// Place of this rank. Nobody has counted the ranks of each host yet.
    pub(crate) placement: Placement,
    /// Rank 0's listener.
    pub(crate) listener: Option<Listener>,
    /// Rank 0's announcement, to be written once rank 0 is ready.
    pub(crate) announcement: Vec<u8>,
}

impl StoreMeeting<'_> {
    /// Learns where to meet: rank 0 opens a listener, at the address `asked` if the ranks are on several hosts, and the
    /// others wait for its announcement.
    ///
    /// # Errors
    /// [`Error::System`] if the store fails, or a rank is not there in time; [`Error::Setup`] if a rank has failed.
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
                (self.get(RENDEZVOUS, self.limit, || "find rank 0's address".to_owned())?, None)
            }
        };
        let (rendezvous, mut secret) = announcement::read(&announcement)?;
        // Who can read the store does not have it.
        if let Some(path) = variable("HEXAGRAM_SECRET_FILE") {
            secret.extend(read_given(&path)?);
        }
        let StoreMeeting { rank, size, .. } = *self;
        let launcher = Launcher::Store;
        let placement =
            Placement { rank, size, local_rank: rank, local_size: size, rendezvous, secret, launcher };
        Ok(Met { placement, listener, announcement })
    }

    /// Writes rank 0's announcement; does nothing on other ranks.
    ///
    /// # Errors
    /// [`Error::System`] if the store fails.
    pub(crate) fn announce(&self, announcement: &[u8]) -> Result<()> {
        if self.rank == 0 { self.put(RENDEZVOUS, announcement) } else { Ok(()) }
    }

    /// Removes rank 0's announcement, which all ranks have read; does nothing on other ranks.
    pub(crate) fn clear(&self) {
        if self.rank == 0
            && let Err(cause) = self.store.remove(RENDEZVOUS)
        {
            tracing::warn!("the secret of this job stays in the store, as it cannot be removed: {cause}");
        }
    }

    /// Tells the others that this rank does not join. For a rank that has told them nothing yet.
    pub(crate) fn give_up(&self, error: &Error) {
        let (key, failure) = match self.rank {
            0 => (RENDEZVOUS.to_owned(), announcement::failure(error)),
            rank => (card(rank), failed(error)),
        };
        // Without the store they miss this rank at the deadline.
        let _ = self.store.put(&key, &failure);
    }

    /// Reads the cards of all other ranks, and removes them. Returns whether all are on this host, and all addresses.
    fn collect_cards(&self) -> Result<(bool, Vec<IpAddr>)> {
        // The store is asked once for each rank.
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
            // One that stays says the same of the next world.
            let _ = self.store.remove(&card(rank));
        }
        let _ = self.store.remove(&card(0));
        Ok((one_host, addresses))
    }

    /// Returns the error of two ranks 0, if another has written its name over that of this one; the other finds it in the
    /// place of the rank for which both wait.
    fn find_other_leader(&self, own: &str, awaited: usize) -> Option<Error> {
        let other = self.store.get(&card(0), EARLY).ok()?;
        let other = String::from_utf8_lossy(&other);
        if other == own {
            return None;
        }
        let error = Error::setup(
            format!("{own} and {other} are both rank 0 of this job"),
            "start each process with a rank of its own",
        );
        let _ = self.store.put(&card(awaited), &failed(&error));
        Some(error)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.store.put(key, value).map_err(|cause| {
            Error::system(
                format!("write {key} to the store of the job"),
                cause,
                "see what the store is, and where",
            )
        })
    }

    fn get(&self, key: &str, left: Duration, doing: impl Fn() -> String) -> Result<Vec<u8>> {
        self.get_or_warn(key, left, &doing).map_err(|cause| {
            let doing = format!("{} in the store of the job within {:?}", doing(), self.limit);
            Error::system(doing, cause, ABSENT)
        })
    }

    /// Returns the value of a key as the store does, and warns where it is late.
    fn get_or_warn(&self, key: &str, left: Duration, doing: impl Fn() -> String) -> io::Result<Vec<u8>> {
        let mut waited = Stopwatch::with_gap(left);
        let patience = left.min(self.late);
        let found = self.store.get(key, patience);
        let rest = left.saturating_sub(waited.elapsed());
        // A store that cannot be reached fails earlier.
        if found.is_ok() || rest.is_zero() || waited.elapsed() + EARLY < patience {
            return found;
        }
        let (rank, doing) = (self.rank, doing());
        tracing::warn!("rank {rank} waits to {doing} in the store of the job, for {rest:.0?} more; {ABSENT}");
        self.store.get(key, rest)
    }
}

/// Returns the key of a rank's card.
fn card(rank: usize) -> String {
    format!("hexagram/rank/{rank}")
}

/// Returns the name of this process as a rank 0, unlike that of any other.
fn name_of_leader() -> String {
    static LEADERS: AtomicU64 = AtomicU64::new(1);
    let host = rustix::system::uname();
    let number = LEADERS.fetch_add(1, Ordering::Relaxed);
    format!("pid {} on {} (world {number})", std::process::id(), host.nodename().to_string_lossy())
}

/// Returns the card of a rank that does not join.
fn failed(error: &Error) -> Vec<u8> {
    Outgoing::default().number(FAILED).text(&error.to_string()).whole()
}

/// Returns the name of the network in which processes reach each other's unix sockets.
fn network() -> String {
    format!("{} {}", boot().trim(), network_namespace())
}

/// Returns the card of this process.
fn present() -> Vec<u8> {
    let addresses = reachable::to_bytes(&reachable::own());
    Outgoing::default().number(PRESENT).text(&network()).blob(&addresses).whole()
}

/// Decodes the card of a rank: its network, and the addresses of its host.
fn read_card(rank: usize, card: &[u8]) -> Result<(String, Vec<IpAddr>)> {
    let parse = || -> io::Result<Result<(String, Vec<IpAddr>)>> {
        let mut message = Incoming::receive(&mut &*card)?;
        match message.number()? {
            PRESENT => {
                let network = message.text()?;
                Ok(Ok((network, reachable::from_bytes(message.blob(reachable::BYTES)?))))
            }
            FAILED => {
                let what = format!("rank {rank} does not join: {}", message.text()?);
                Ok(Err(Error::setup(what, format!("see rank {rank}'s own error"))))
            }
            _ => Err(malformed()),
        }
    };
    parse().unwrap_or_else(|cause| {
        let doing = format!("read what rank {rank} wrote to the store");
        Err(Error::system(doing, cause, "use the same build on all ranks"))
    })
}

#[cfg(test)]
mod tests;
