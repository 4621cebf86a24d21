//! Copies of files of a checkpoint from rank to rank: missing ones before loading, and further ones while saving.
//!
//! The copies are in rounds, in each of which a rank sends one file and receives one at most, so that it holds at most two
//! in memory.

use crate::record::all_or_none;
use hexagram_logical::{Communicator, Error, Result};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Copy of the file of a saved rank from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) from: usize,
    pub(super) to: usize,
    /// Rank that has saved the file.
    pub(super) file: usize,
}

/// Returns the copies after which each rank has the files that it lacks, if another has them. A file comes from the rank
/// that sends the fewest others.
pub(super) fn plan(lacking: &[Vec<usize>], held: &[BTreeSet<usize>]) -> Vec<Transfer> {
    let mut sent = vec![0; held.len()];
    let mut transfers = Vec::new();
    for (to, files) in lacking.iter().enumerate() {
        for file in files {
            let holders = (0..held.len()).filter(|from| *from != to && held[*from].contains(file));
            if let Some(from) = holders.min_by_key(|from| sent[*from]) {
                sent[from] += 1;
                transfers.push(Transfer { from, to, file: *file });
            }
        }
    }
    transfers
}

/// Returns the copies in rounds.
fn rounds(mut left: Vec<Transfer>) -> Vec<Vec<Transfer>> {
    let mut rounds = Vec::new();
    while !left.is_empty() {
        let (mut senders, mut receivers) = (BTreeSet::new(), BTreeSet::new());
        let is_free = |copy: &Transfer| {
            let free = !senders.contains(&copy.from) && !receivers.contains(&copy.to);
            if free {
                senders.insert(copy.from);
                receivers.insert(copy.to);
            }
            free
        };
        let (round, others) = left.into_iter().partition(is_free);
        rounds.push(round);
        left = others;
    }
    rounds
}

/// Makes the copies, which are the same list on all ranks: `read` returns the content of a file that this rank sends, and
/// `write` stores one that it has received. A collective call.
///
/// # Errors
/// On every rank, if `read` or `write` fails on one; errors of the communication.
pub(super) fn make<'a>(
    comm: &Communicator,
    transfers: &[Transfer],
    read: impl Fn(usize) -> Result<Cow<'a, [u8]>>,
    mut write: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let rank = comm.rank();
    for round in rounds(transfers.to_vec()) {
        let sending = round.iter().find(|copy| copy.from == rank);
        let receiving = round.iter().find(|copy| copy.to == rank);
        let bytes = sending.map_or(Ok(Cow::default()), |copy| read(copy.file));
        let bytes = all_or_none(comm, bytes)?;
        let mut lens = vec![0i64; comm.size()];
        comm.blocking().all_gather(&[bytes.len() as i64], &mut lens)?;
        let sizes: BTreeMap<usize, usize> = sending.map(|copy| (copy.to, bytes.len())).into_iter().collect();
        let awaited: BTreeMap<usize, usize> = receiving
            .map(|copy| (copy.from, usize::try_from(lens[copy.from]).unwrap_or(usize::MAX)))
            .into_iter()
            .collect();
        let counts = |of: &BTreeMap<usize, usize>| -> Vec<usize> {
            (0..comm.size()).map(|rank| of.get(&rank).copied().unwrap_or(0)).collect()
        };
        let mut received = all_or_none(comm, room(awaited.values().sum()))?;
        comm.blocking().all_to_all_v(&bytes, &counts(&sizes), &mut received, &counts(&awaited))?;
        let written = receiving.map_or(Ok(()), |copy| write(copy.file, &received));
        all_or_none(comm, written)?;
    }
    Ok(())
}

/// Returns memory for a file of `len` bytes, a number that a peer has sent.
fn room(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| {
        let what = format!("a file of {len} bytes, which another rank sends, does not fit in memory");
        Error::usage(
            what,
            "free memory on this host, or place the checkpoints in a directory that all hosts share",
        )
    })?;
    bytes.resize(len, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hexagram_logical::TransportKind;
    use hexagram_logical::testing::spawn;

    fn held<const N: usize>(lists: [&[usize]; N]) -> Vec<BTreeSet<usize>> {
        lists.iter().map(|list| list.iter().copied().collect()).collect()
    }

    #[test]
    fn a_lacking_file_comes_from_the_rank_that_sends_the_fewest() {
        let held = held([&[0, 1], &[0, 1], &[], &[2]]);
        let lacking = [vec![], vec![2], vec![0, 1, 7], vec![0]];
        let copy = |from, to, file| Transfer { from, to, file };
        assert_eq!(plan(&lacking, &held), [copy(3, 1, 2), copy(0, 2, 0), copy(1, 2, 1), copy(0, 3, 0)]);
        assert_eq!(plan(&[vec![], vec![]], &held[..2]), []);
        // A rank does not send a file to itself.
        assert_eq!(plan(&[vec![0]], &held[..1]), []);
    }

    #[test]
    fn in_a_round_each_rank_sends_and_receives_one_file_at_most() {
        let all: Vec<Transfer> = (0..5)
            .flat_map(|from| {
                (0..5).filter(move |to| *to != from).map(move |to| Transfer { from, to, file: from })
            })
            .collect();
        let rounds = rounds(all.clone());
        for round in &rounds {
            for rank in 0..5 {
                assert!(round.iter().filter(|copy| copy.from == rank).count() <= 1);
                assert!(round.iter().filter(|copy| copy.to == rank).count() <= 1);
            }
        }
        let made = rounds.concat();
        assert!(made.len() == all.len() && all.iter().all(|copy| made.contains(copy)));
    }

    #[test]
    fn files_arrive_whole_and_an_error_reaches_all_ranks() {
        let run = |comm: Communicator| {
            let held = held([&[0], &[1], &[2]]);
            let lacking = [vec![1, 2], vec![2], vec![]];
            let mut found = BTreeMap::new();
            let content = |file: usize| Ok(Cow::from(vec![file as u8; 1000 * file]));
            make(&comm, &plan(&lacking, &held), content, |file, bytes| {
                found.insert(file, bytes.to_vec());
                Ok(())
            })?;
            let wanted = lacking[comm.rank()].iter().map(|file| Ok((*file, content(*file)?.into_owned())));
            assert_eq!(found, wanted.collect::<Result<_>>()?);
            let refuse =
                |file| if file == 2 { Err(Error::usage("no file", "make one")) } else { content(file) };
            Ok(make(&comm, &plan(&lacking, &held), refuse, |_, _| Ok(())).unwrap_err().to_string())
        };
        for error in spawn(TransportKind::Thread, 3, run).unwrap() {
            assert!(error.contains("no file"), "{error}");
        }
        assert!(room(usize::MAX).unwrap_err().to_string().contains("does not fit in memory"));
    }
}
