//! Copies of each rank's file on other hosts, so that a host and its disk can be lost.
//!
//! ```text
//! hosts h = 0 … H − 1        the i-th rank of host h sends its file to host h + 1, … h + peers (mod H), and there to the
//!                            rank i mod its number of ranks
//! ```

use super::file;
use super::folder::{Folder, Name};
use super::transfer::{self, Transfer};
use crate::record::{all_or_none, gather_lists};
use hexagram_logical::{Communicator, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Copies the file of each rank, of which these are the bytes, to `peers` other hosts, into the directory of an incomplete
/// checkpoint there. Hosts that share the directory copy nothing. A collective call.
///
/// # Errors
/// On every rank, if one cannot write; errors of the communication.
pub(super) fn copy(
    comm: &Communicator,
    (folder, name): (&Folder<'_>, Name),
    bytes: &[u8],
    peers: usize,
) -> Result<()> {
    let hosts = hosts(comm);
    if peers == 0 || hosts.len() < 2 {
        return Ok(());
    }
    let mut transfers = plan(&hosts, peers);
    let path = |saved| folder.partial(name).join(Folder::file_of(saved, comm.size()));
    let to_here = transfers.iter().filter(|copy| copy.to == comm.rank());
    let lacking: Vec<usize> = to_here.map(|copy| copy.file).filter(|saved| !path(*saved).is_file()).collect();
    let lacking = gather_lists(comm, &lacking)?;
    transfers.retain(|copy| lacking[copy.to].contains(&copy.file));
    transfer::make(
        comm,
        &transfers,
        |_| Ok(Cow::Borrowed(bytes)),
        |saved, bytes| file::put(&path(saved), bytes),
    )?;
    all_or_none(comm, folder.written(name))
}

/// Returns the ranks of each host.
fn hosts(comm: &Communicator) -> Vec<Vec<usize>> {
    let mut hosts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, in_world) in comm.world_ranks().iter().enumerate() {
        hosts.entry(comm.world().hosts()[*in_world]).or_default().push(rank);
    }
    hosts.into_values().collect()
}

fn plan(hosts: &[Vec<usize>], peers: usize) -> Vec<Transfer> {
    let mut transfers = Vec::new();
    for (host, ranks) in hosts.iter().enumerate() {
        for distance in 1..=peers.min(hosts.len() - 1) {
            let peer = &hosts[(host + distance) % hosts.len()];
            let to = |at: usize| peer[at % peer.len()];
            transfers.extend(ranks.iter().enumerate().map(|(at, rank)| Transfer {
                from: *rank,
                to: to(at),
                file: *rank,
            }));
        }
    }
    transfers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_on_as_many_further_hosts_as_there_are_peers() {
        let hosts = [vec![0, 1, 2], vec![3], vec![4, 5]];
        let host = |rank: usize| hosts.iter().position(|ranks| ranks.contains(&rank));
        for peers in 0..5 {
            let transfers = plan(&hosts, peers);
            for rank in 0..6 {
                let of_rank = transfers.iter().filter(|copy| copy.file == rank && copy.from == rank);
                let mut on: Vec<_> = of_rank.map(|copy| host(copy.to)).chain([host(rank)]).collect();
                on.sort();
                on.dedup();
                assert_eq!(on.len(), 1 + peers.min(2), "{rank} {peers}");
            }
        }
        assert_eq!(plan(&hosts[..1], 1), []);
    }
}
