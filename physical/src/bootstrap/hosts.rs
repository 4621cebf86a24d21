//! Determines which ranks share memory, from their claims and from probes.
//!
//! Names are not proof. Clones of a machine snapshot have the same name, and so may hosts that a user named; on one
//! host, processes of different users share no memory. Therefore, before ranks share memory, each rank that claims
//! the host of lower ranks probes their listeners, the lowest first, until one accepts it. It sends the result to
//! rank 0, which sends all results to all ranks, so that they agree on the hosts. `control` has the messages.

use super::meeting::peer_info::PeerInfo;
use crate::control::health::Health;
use crate::error::{Error, ErrorContext, Result};
use crate::runtime;
use crate::waiting::stopwatch::Stopwatch;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Time between two checks whether the world has failed.
const TICK: Duration = Duration::from_millis(50);

/// Outcome of an attempt to share memory with another rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeResult {
    /// The two ranks share memory.
    Shared,
    /// The other rank is on this kernel but shares no memory with this one, for this reason.
    SameKernel(String),
    /// The other rank was not found on this kernel, for this reason.
    Unreachable(String),
}

/// Result of the probes of a rank. A rank without lower ranks on its host has found itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Locality {
    /// Lowest rank with which it can share memory.
    pub(crate) host: usize,
    /// Lowest rank that is known to be on its kernel. The two need not share memory.
    pub(crate) kernel: usize,
}

/// Hosts of the ranks of a world.
pub(crate) struct WorldHosts {
    /// This rank.
    rank: usize,
    /// Host and kernel that each rank claims.
    claimed: Vec<(Arc<str>, Arc<str>)>,
    /// Results of the probes of the ranks that rank 0 has received.
    recorded: Mutex<Vec<Option<Locality>>>,
    /// Results of all ranks, after they have been distributed.
    agreed: OnceLock<Vec<Locality>>,
    /// Signal for a change of `agreed`.
    more: Condvar,
}

impl WorldHosts {
    /// Creates the claims of all ranks, before any probe.
    pub(crate) fn new(rank: usize, infos: &[PeerInfo]) -> Self {
        let claimed =
            infos.iter().map(|info| (Arc::clone(&info.machine), Arc::clone(&info.kernel))).collect();
        let recorded = Mutex::default();
        let agreed = OnceLock::new();
        let more = Condvar::new();
        let hosts = WorldHosts { rank, claimed, recorded, agreed, more };
        // A rank without lower ranks sends no result.
        let locality =
            |rank| hosts.lower(rank).next().is_none().then_some(Locality { host: rank, kernel: rank });
        let recorded = (0..infos.len()).map(locality).collect();
        WorldHosts { recorded: Mutex::new(recorded), ..hosts }
    }

    /// Returns the lower ranks that claim the host of `rank`.
    fn lower(&self, rank: usize) -> impl Iterator<Item = usize> {
        (0..rank).filter(move |lower| self.claimed[*lower].0 == self.claimed[rank].0)
    }

    /// Returns true if any rank claims the host of another.
    fn has_shared_claims(&self) -> bool {
        (0..self.claimed.len()).any(|rank| self.lower(rank).next().is_some())
    }

    /// Tries to connect to each lower rank of the host of `rank`. Returns the result, and the reason why it is not the
    /// claimed host, if so.
    fn locate(&self, rank: usize, mut probe: impl FnMut(usize) -> ProbeResult) -> (Locality, Option<String>) {
        let mut kernel = rank;
        let mut why = None;
        for lower in self.lower(rank) {
            match probe(lower) {
                ProbeResult::Shared => return (Locality { host: lower, kernel: kernel.min(lower) }, None),
                ProbeResult::SameKernel(reason) => {
                    kernel = kernel.min(lower);
                    why.get_or_insert(reason);
                }
                ProbeResult::Unreachable(reason) => drop(why.get_or_insert(reason)),
            }
        }
        (Locality { host: rank, kernel }, why)
    }

    /// Tries to connect to each lower rank on this host, sends the result by `report`, and waits until all ranks know
    /// all results.
    ///
    /// # Errors
    /// The failure of a rank, or [`Error::Setup`] if a result is missing after `limit`.
    pub(crate) fn agree(
        &self,
        health: &Health,
        limit: Duration,
        probe: impl FnMut(usize) -> ProbeResult,
        report: impl FnOnce(Locality),
    ) -> Result<()> {
        if !self.has_shared_claims() {
            return Ok(());
        }
        let rank = self.rank;
        let (locality, why) = self.locate(rank, probe);
        if self.lower(rank).next().is_some() {
            report(locality);
        }
        self.wait(health, limit).map_err(|error| health.explain(error, ErrorContext::Nothing))?;
        if let Some(why) = why.filter(|_| locality.host == rank) {
            self.warn(health, &why);
        }
        Ok(())
    }

    /// Waits until all results have arrived.
    fn wait(&self, health: &Health, limit: Duration) -> Result<()> {
        let mut waited = Stopwatch::start();
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        while self.agreed.get().is_none() {
            // A rank that left after it sent its result is not missing.
            let silent = |rank: usize| recorded[rank].is_none() && health.has_left(rank);
            let given_up = health.verdict().is_some() || (0..recorded.len()).any(silent);
            if given_up || waited.elapsed() > limit {
                let what = format!("some ranks did not report their hosts within {limit:?}");
                return Err(Error::setup(what, "find the rank that has ended, or is stopped"));
            }
            drop(recorded);
            recorded = runtime::wait_while(&self.more, &self.recorded, TICK, |_| self.agreed.get().is_none());
        }
        Ok(())
    }

    /// Warns that ranks are not on the host that they claim. The lowest rank of those that share memory prints it.
    fn warn(&self, health: &Health, why: &str) {
        let Some(lower) = self.lower(self.rank).next() else { return };
        let with = self.sharing_with(self.rank).iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        tracing::warn!(
            "tcp between rank {with} here and {}: their hosts have the same name, but share no memory ({why}); name hosts \
             with HEXAGRAM_HOST, and start the ranks of a host as one user",
            health.peers()[lower]
        );
    }

    /// Records the result of `rank`, on rank 0. Returns all results once they are complete.
    pub(crate) fn record(&self, rank: usize, locality: Locality) -> Option<Vec<Locality>> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded[rank] = Some(locality);
        recorded.iter().copied().collect()
    }

    /// Takes the results of all ranks as final. Later calls have no effect.
    pub(crate) fn settle(&self, localities: Vec<Locality>) {
        if localities.len() == self.claimed.len() {
            let _heard = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = self.agreed.set(localities);
            self.more.notify_all();
        }
    }

    /// Returns true if two ranks share a host.
    fn share_host(&self, one: usize, other: usize) -> bool {
        let found = self.agreed.get().is_none_or(|found| found[one].host == found[other].host);
        found && self.claimed[one].0 == self.claimed[other].0
    }

    /// Returns true if two ranks share a kernel, in any containers.
    pub(crate) fn share_kernel(&self, one: usize, other: usize) -> bool {
        match self.agreed.get() {
            Some(found) if self.claimed[one].0 == self.claimed[other].0 => {
                found[one].kernel == found[other].kernel
            }
            _ => self.claimed[one].1 == self.claimed[other].1,
        }
    }

    /// Returns the number of ranks on the kernel of `rank`, including itself.
    pub(crate) fn on_kernel_of(&self, rank: usize) -> usize {
        (0..self.claimed.len()).filter(|other| self.share_kernel(rank, *other)).count()
    }

    /// Returns the ranks on the host of `rank`, including itself.
    pub(crate) fn sharing_with(&self, rank: usize) -> Vec<usize> {
        (0..self.claimed.len()).filter(|other| self.share_host(rank, *other)).collect()
    }

    /// Refuses a world whose ranks do not all share memory.
    ///
    /// # Errors
    /// [`Error::Setup`], the same on all ranks.
    pub(crate) fn require_one_host(&self, health: &Health) -> Result<()> {
        let Some(other) = (0..self.claimed.len()).find(|rank| !self.share_host(0, *rank)) else {
            return Ok(());
        };
        let peers = health.peers();
        let what =
            format!("the hosts of {} and {} have the same name, but share no memory", peers[0], peers[other]);
        let remedy = "see the warning of that rank; use the mixed or the tcp transport, name hosts with HEXAGRAM_HOST, and start \
                      the ranks of one host as one user";
        Err(Error::setup(what, remedy))
    }

    /// Returns the number of each rank's host. Hosts are numbered from 0 in the order of their lowest ranks.
    pub(crate) fn host_numbers(&self) -> Vec<usize> {
        let mut first: Vec<usize> = Vec::new();
        let number = |rank| {
            first.iter().position(|host| self.share_host(*host, rank)).unwrap_or_else(|| {
                first.push(rank);
                first.len() - 1
            })
        };
        (0..self.claimed.len()).map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates hosts from the claimed host and kernel of each rank.
    fn hosts(claimed: &[(&str, &str)]) -> WorldHosts {
        let info = |(rank, (machine, kernel)): (usize, &(&str, &str))| PeerInfo {
            rank,
            pid: 1,
            host: "a".into(),
            kernel: (*kernel).into(),
            machine: (*machine).into(),
            announcement: Arc::default(),
        };
        WorldHosts::new(0, &claimed.iter().enumerate().map(info).collect::<Vec<_>>())
    }

    /// Performs all probes. Ranks with equal letters reach each other, in equal case they also accept each other.
    fn found(claimed: &[(&str, &str)], groups: &str) -> WorldHosts {
        let hosts = hosts(claimed);
        let group = |rank: usize| groups.as_bytes()[rank].to_ascii_lowercase();
        let user = |rank: usize| groups.as_bytes()[rank].is_ascii_uppercase();
        let mut all = None;
        for rank in 0..claimed.len() {
            let probe = |lower: usize| match (group(lower) == group(rank), user(lower) == user(rank)) {
                (true, true) => ProbeResult::Shared,
                (true, false) => ProbeResult::SameKernel("another user".into()),
                (false, _) => ProbeResult::Unreachable("nobody there".into()),
            };
            let (locality, why) = hosts.locate(rank, probe);
            assert_eq!(why.is_some(), locality.host == rank && hosts.lower(rank).next().is_some(), "{rank}");
            all = hosts.record(rank, locality);
        }
        hosts.settle(all.unwrap());
        hosts
    }

    #[test]
    fn ranks_that_say_the_same_share_a_host_where_they_let_each_other_in() {
        let clones = [("m", "k"); 6];
        let hosts = found(&clones, "aabbab");
        assert_eq!(hosts.host_numbers(), [0, 0, 1, 1, 0, 1]);
        assert_eq!((hosts.sharing_with(3), hosts.sharing_with(4)), (vec![2, 3, 5], vec![0, 1, 4]));
        assert_eq!(
            (hosts.on_kernel_of(0), hosts.share_kernel(0, 2), hosts.share_kernel(2, 5)),
            (3, false, true)
        );
    }

    #[test]
    fn other_users_are_on_the_kernel_but_share_no_memory() {
        let hosts = found(&[("m", "k"); 4], "aAAa");
        assert_eq!(hosts.host_numbers(), [0, 1, 1, 0]);
        assert_eq!(hosts.on_kernel_of(2), 4);
    }

    #[test]
    fn ranks_that_say_otherwise_are_left_as_they_say() {
        let hosts = found(&[("m", "k"), ("n", "k"), ("m", "k"), ("o", "l")], "aaaa");
        assert_eq!(hosts.host_numbers(), [0, 1, 0, 2]);
        assert_eq!((hosts.on_kernel_of(1), hosts.on_kernel_of(3)), (3, 1));
    }

    #[test]
    fn without_looking_ranks_are_where_they_say() {
        let hosts = hosts(&[("m", "k"), ("m", "k"), ("n", "k")]);
        assert!(hosts.has_shared_claims());
        assert_eq!((hosts.host_numbers(), hosts.on_kernel_of(0)), (vec![0, 0, 1], 3));
    }
}
