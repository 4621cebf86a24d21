//! Members: the ranks of a collective, in the order of their group, and the ranks that this rank receives from in each round.

use crate::error::{Error, Result};
use std::sync::Arc;

/// Ranks of a collective, of which this one is one.
#[derive(Clone)]
pub(super) struct GroupMembers {
    ranks: Arc<[usize]>,
    /// This rank's place among them.
    place: usize,
}

impl GroupMembers {
    /// Names the ranks of a collective that `rank` takes part in.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not among them.
    pub(super) fn new(ranks: &Arc<[usize]>, rank: usize) -> Result<Self> {
        let place = ranks.iter().position(|member| *member == rank);
        let stranger = || {
            let what = format!("rank {rank} is to take part in a collective of ranks {ranks:?}");
            Error::usage(what, "call the collectives of a group only on its members")
        };
        Ok(GroupMembers { ranks: Arc::clone(ranks), place: place.ok_or_else(stranger)? })
    }

    /// Returns the ranks, in the order of their group.
    pub(super) fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Returns the number of ranks.
    pub(super) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// Returns this rank's place among them.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    /// Returns the number of rounds after which each rank has information from all, if each receives one message a round.
    pub(super) fn rounds(&self) -> u32 {
        self.count().next_power_of_two().ilog2()
    }

    /// Returns the rank that this rank writes to in a round.
    pub(super) fn after(&self, round: u32) -> usize {
        self.ranks[(self.place + (1 << round)) % self.count()]
    }

    /// Returns the rank that this rank reads from in a round.
    pub(super) fn before(&self, round: u32) -> usize {
        self.ranks[(self.place + self.count() - (1 << round) % self.count()) % self.count()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_all_rounds_each_rank_has_heard_of_all() {
        for count in 1..20 {
            let ranks: Arc<[usize]> = (0..count).map(|place| 100 - 3 * place).collect();
            let all: Vec<GroupMembers> =
                ranks.iter().map(|rank| GroupMembers::new(&ranks, *rank).unwrap()).collect();
            let mut heard: Vec<Vec<usize>> = ranks.iter().map(|rank| vec![*rank]).collect();
            for round in 0..all[0].rounds() {
                let before = heard.clone();
                for (place, members) in all.iter().enumerate() {
                    let from = ranks.iter().position(|rank| *rank == members.before(round)).unwrap();
                    assert_eq!(all[from].after(round), ranks[place]);
                    heard[place].extend(&before[from]);
                }
            }
            for mut heard in heard {
                heard.sort_unstable();
                heard.dedup();
                assert_eq!(heard.len(), count);
            }
        }
        assert!(GroupMembers::new(&[1, 2].into(), 0).is_err());
    }
}
