//! Waits between ranks: the missing messages of operations that have been pending for a while, and the ranks for
//! which all ultimately wait.
//!
//! Each process knows the waits of its own operations; heartbeats carry them to rank 0, and carry the conclusions
//! back. Edges lead from an operation to the ranks that it waits for, and from there to the ranks that these wait
//! for. A rank that does not wait is a *straggler*: it is alive, but elsewhere in its program. Ranks that wait for
//! each other in a circle are in different operations, and these are named. A rank that waits for its own device
//! waits for itself.

use crate::transport::message::Label;
use crate::transport::tag::Tag;
use std::collections::HashMap;

/// Maximum number of waits that one rank publishes: the oldest ones.
const MOST_WAITS: usize = 32;
/// Maximum number of ranks that one wait or answer names: the lowest ones.
const MOST_RANKS: usize = 64;

/// A rank for which others wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) rank: usize,
    /// The operation in which it waits itself: the requested one if it waits for its device; `None` if it does not
    /// wait.
    pub(crate) within: Option<Label>,
}

/// An operation that has been pending for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingWait {
    pub(crate) label: Label,
    /// The ranks whose part is still missing; none if anyone's would do.
    pub(crate) ranks: Vec<usize>,
}

/// An operation, and the ranks for which it ultimately waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingRanks {
    pub(crate) label: Label,
    pub(crate) missing: Vec<Missing>,
}

/// The waits that one process knows.
#[derive(Debug)]
pub(crate) struct Waits {
    /// By rank, with a number for withdrawing each.
    of: Vec<Vec<(u64, PendingWait)>>,
    /// True if that is of all ranks, and not only of this process's.
    complete: bool,
    /// Answers of rank 0, if it is another process.
    answers: Vec<MissingRanks>,
    next: u64,
    /// The last operation of each lane about which a rank has warned.
    warned: HashMap<(usize, Tag), u64>,
}

impl Waits {
    /// Creates the initial state without waits. `complete` if the waits of every rank will be entered here.
    pub(crate) fn new(size: usize, complete: bool) -> Self {
        let of = vec![Vec::new(); size];
        Waits { of, complete, answers: Vec::new(), next: 0, warned: HashMap::new() }
    }

    /// Enters a wait of a rank of this process; the number withdraws it.
    pub(crate) fn enter(&mut self, rank: usize, label: Label, ranks: &[usize]) -> u64 {
        self.next += 1;
        let ranks = ranks.iter().copied().take(MOST_RANKS).collect();
        self.of[rank].push((self.next, PendingWait { label: label.whole(), ranks }));
        self.next
    }

    pub(crate) fn withdraw(&mut self, rank: usize, number: u64) {
        self.of[rank].retain(|(other, _)| *other != number);
    }

    /// Returns the waits that `rank` has entered, for publishing.
    pub(crate) fn of(&self, rank: usize) -> Vec<PendingWait> {
        self.of[rank].iter().take(MOST_WAITS).map(|(_, wait)| wait.clone()).collect()
    }

    /// Replaces the waits of a rank of another process.
    pub(crate) fn hear(&mut self, rank: usize, waits: Vec<PendingWait>) {
        self.of[rank] = waits.into_iter().map(|wait| (0, wait)).collect();
    }

    /// Replaces the conclusions of rank 0 from all waits.
    pub(crate) fn learn(&mut self, answers: Vec<MissingRanks>) {
        self.answers = answers;
    }

    /// Returns, for every waiting operation, the ranks for which it ultimately waits.
    pub(crate) fn answers(&self) -> Vec<MissingRanks> {
        let mut answers: Vec<MissingRanks> = Vec::new();
        for (_, PendingWait { label, .. }) in self.of.iter().flatten() {
            if !answers.iter().any(|answer| answer.label == *label) {
                answers.push(MissingRanks { label: *label, missing: self.follow(label) });
            }
        }
        answers
    }

    /// Returns the ranks for which all ranks of this operation ultimately wait; empty if unknown.
    pub(crate) fn missing(&self, label: &Label) -> Vec<Missing> {
        let label = label.whole();
        if self.complete {
            return self.follow(&label);
        }
        let answer = self.answers.iter().find(|answer| answer.label == label);
        answer.map(|answer| answer.missing.clone()).unwrap_or_default()
    }

    fn follow(&self, label: &Label) -> Vec<Missing> {
        let within = |rank: usize| self.of[rank].iter().map(|(_, wait)| wait);
        let mut ahead: Vec<usize> = (0..self.of.len())
            .flat_map(within)
            .filter(|wait| wait.label == *label)
            .flat_map(|wait| &wait.ranks)
            .copied()
            .collect();
        let mut seen = vec![false; self.of.len()];
        while let Some(rank) = ahead.pop() {
            if std::mem::replace(&mut seen[rank], true) {
                continue;
            }
            // A rank may wait in several operations; the others matter only if it is not in this one.
            let here = within(rank).any(|wait| wait.label == *label);
            let waits = within(rank).filter(|wait| !here || wait.label == *label);
            ahead.extend(waits.flat_map(|wait| &wait.ranks));
        }
        let met = || (0..seen.len()).filter(|rank| seen[*rank]);
        let at_work = met().filter(|rank| within(*rank).any(|wait| wait.ranks.contains(rank)));
        let at_work: Vec<Missing> = at_work.map(|rank| Missing { rank, within: Some(*label) }).collect();
        if !at_work.is_empty() {
            return at_work.into_iter().take(MOST_RANKS).collect();
        }
        let missing = |rank: usize| Missing { rank, within: within(rank).next().map(|wait| wait.label) };
        let idle = met().filter(|rank| self.of[*rank].is_empty());
        let idle: Vec<Missing> = idle.map(missing).take(MOST_RANKS).collect();
        if !idle.is_empty() {
            return idle;
        }
        let elsewhere = met().filter(|rank| within(*rank).all(|wait| wait.label != *label));
        elsewhere.map(missing).take(MOST_RANKS).collect()
    }

    /// Returns true if `rank` has not yet warned about this operation.
    pub(crate) fn first_warning(&mut self, rank: usize, label: &Label) -> bool {
        let sequence = label.tag.sequence();
        self.warned.insert((rank, label.tag.series()), sequence) != Some(sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::dtype::DType;
    use crate::transport::fingerprint::{Fingerprint, OperationKind};

    fn label(sequence: u64, step: usize) -> Label {
        let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, 1);
        Label { tag: Tag::new(0, 0, sequence, step).unwrap(), fingerprint }
    }

    fn nobody(rank: usize) -> Missing {
        Missing { rank, within: None }
    }

    #[test]
    fn a_chain_leads_to_the_rank_that_waits_for_nobody() {
        let mut waits = Waits::new(4, true);
        waits.enter(0, label(7, 3), &[1]);
        waits.enter(1, label(7, 2), &[2]);
        // Rank 2 is an operation behind.
        waits.enter(2, label(6, 0), &[3]);
        assert_eq!(waits.missing(&label(7, 0)), [nobody(3)]);
        assert_eq!(waits.missing(&label(6, 9)), [nobody(3)]);
    }

    #[test]
    fn a_rank_within_the_operation_is_not_blamed_for_another_lane() {
        let mut waits = Waits::new(4, true);
        waits.enter(0, label(7, 0), &[1]);
        waits.enter(1, label(7, 0), &[2]);
        waits.enter(1, label(5, 0), &[3]);
        assert_eq!(waits.missing(&label(7, 0)), [nobody(2)]);
    }

    #[test]
    fn a_rank_that_waits_for_its_device_is_the_one() {
        let mut waits = Waits::new(3, true);
        waits.enter(0, label(7, 0), &[1]);
        waits.enter(1, label(7, 0), &[2]);
        waits.enter(1, label(7, 0), &[1]);
        waits.enter(2, label(7, 0), &[0]);
        assert_eq!(waits.missing(&label(7, 0)), [Missing { rank: 1, within: Some(label(7, 0)) }]);
    }

    #[test]
    fn everyone_who_is_missing_is_listed() {
        // A ring in which ranks 1 and 4 are late.
        let mut waits = Waits::new(6, true);
        for (rank, of) in [(0, 5), (2, 1), (3, 2), (5, 4)] {
            waits.enter(rank, label(0, 0), &[of]);
        }
        assert_eq!(waits.missing(&label(0, 0)), [nobody(1), nobody(4)]);
    }

    #[test]
    fn a_circle_names_the_ranks_that_are_in_another_operation() {
        let mut waits = Waits::new(2, true);
        waits.enter(0, label(1, 0), &[1]);
        waits.enter(1, label(2, 5), &[0]);
        assert_eq!(waits.missing(&label(1, 0)), [Missing { rank: 1, within: Some(label(2, 0)) }]);
        assert_eq!(waits.missing(&label(2, 0)), [Missing { rank: 0, within: Some(label(1, 0)) }]);
    }

    #[test]
    fn who_waits_for_anyone_is_not_missing() {
        let mut waits = Waits::new(2, true);
        waits.enter(0, label(1, 0), &[1]);
        waits.enter(1, label(1, 0), &[]);
        assert_eq!(waits.missing(&label(1, 0)), []);
    }

    #[test]
    fn a_member_knows_what_it_was_told_and_a_withdrawn_wait_counts_no_more() {
        let mut hub = Waits::new(3, true);
        let mut member = Waits::new(3, false);
        let number = member.enter(1, label(4, 1), &[2]);
        assert_eq!(member.missing(&label(4, 1)), []);
        hub.hear(1, member.of(1));
        member.learn(hub.answers());
        assert_eq!(member.missing(&label(4, 1)), [nobody(2)]);
        member.withdraw(1, number);
        hub.hear(1, member.of(1));
        assert_eq!(hub.answers(), []);
    }

    #[test]
    fn each_operation_is_warned_about_once() {
        let mut waits = Waits::new(2, true);
        let asked = [(0, 3), (1, 3), (0, 3), (0, 4)];
        assert_eq!(
            asked.map(|(rank, number)| waits.first_warning(rank, &label(number, 1))),
            [true, true, false, true]
        );
    }
}
