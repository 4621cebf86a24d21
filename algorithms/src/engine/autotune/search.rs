//! The search: one kind of setting after another, each with the best values so far of the others. The same costs lead
//! to the same choices.

use super::options::Tuning;
use std::collections::VecDeque;

/// Setting that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialSetting {
    BucketBytes(usize),
    Streams(usize),
    Hierarchical(bool),
}

impl TrialSetting {
    fn of(self, mut tuning: Tuning) -> Tuning {
        match self {
            TrialSetting::BucketBytes(bytes) => tuning.bucket_bytes = bytes,
            TrialSetting::Streams(streams) => tuning.streams = streams,
            TrialSetting::Hierarchical(hierarchical) => tuning.hierarchical = hierarchical,
        }
        tuning
    }
}

pub(super) struct Search {
    /// Kinds of settings still to be tried, the current one first.
    rounds: VecDeque<Vec<TrialSetting>>,
    /// Settings that the current round varies.
    base: Tuning,
    trying: Tuning,
    best: Option<(f64, Tuning)>,
}

impl Search {
    /// Starts with the present settings.
    pub(super) fn new(present: Tuning, mut rounds: Vec<Vec<TrialSetting>>) -> Self {
        rounds.iter_mut().for_each(|round| round.reverse());
        Search { rounds: rounds.into(), base: present, trying: present, best: None }
    }

    /// Records the cost of a step with the last candidate.
    pub(super) fn measured(&mut self, cost: f64) {
        if self.best.is_none_or(|(least, _)| cost < least) {
            self.best = Some((cost, self.trying));
        }
    }

    pub(super) fn best(&self) -> Tuning {
        self.best.map_or(self.base, |(_, tuning)| tuning)
    }

    /// Returns the next candidate; `None` after the last.
    pub(super) fn next(&mut self) -> Option<Tuning> {
        loop {
            let next = loop {
                match self.rounds.front_mut()?.pop() {
                    Some(change) => break change.of(self.base),
                    None => {
                        self.rounds.pop_front();
                        self.base = self.best();
                    }
                }
            };
            // The base of the round was measured before.
            if next != self.base {
                self.trying = next;
                return Some(next);
            }
        }
    }

    /// Keeps the size of the buckets, as they cannot be cut differently.
    pub(super) fn keep_buckets(&mut self, bucket_bytes: usize) {
        let keeps = |change: &TrialSetting| !matches!(change, TrialSetting::BucketBytes(_));
        self.rounds.iter_mut().for_each(|round| round.retain(keeps));
        self.base.bucket_bytes = bucket_bytes;
        if let Some((_, best)) = &mut self.best {
            best.bucket_bytes = bucket_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: Tuning = Tuning { bucket_bytes: 10, streams: 8, hierarchical: false };

    fn found(rounds: Vec<Vec<TrialSetting>>, cost: impl Fn(Tuning) -> f64) -> (Tuning, Vec<Tuning>) {
        let mut search = Search::new(PRESENT, rounds);
        let mut tried = vec![PRESENT];
        search.measured(cost(PRESENT));
        while let Some(next) = search.next() {
            tried.push(next);
            search.measured(cost(next));
        }
        (search.best(), tried)
    }

    fn rounds() -> Vec<Vec<TrialSetting>> {
        vec![
            [1, 10, 20, 40].map(TrialSetting::BucketBytes).to_vec(),
            [1, 2].map(TrialSetting::Streams).to_vec(),
            [false, true].map(TrialSetting::Hierarchical).to_vec(),
        ]
    }

    #[test]
    fn every_kind_of_setting_is_tried_with_the_best_of_the_others() {
        let cost = |tuning: Tuning| {
            let far = (tuning.bucket_bytes as f64 - 20.0).abs();
            far + tuning.streams as f64 + if tuning.hierarchical { 0.0 } else { 0.5 }
        };
        let (best, tried) = found(rounds(), cost);
        assert_eq!(best, Tuning { bucket_bytes: 20, streams: 1, hierarchical: true });
        assert_eq!(tried.len(), 1 + 3 + 2 + 1);
    }

    #[test]
    fn what_there_is_stays_if_nothing_is_better() {
        let (best, _) = found(rounds(), |tuning| if tuning == PRESENT { 1.0 } else { 2.0 });
        assert_eq!(best, PRESENT);
        assert_eq!(found(Vec::new(), |_| 1.0).1, [PRESENT]);
    }

    #[test]
    fn buckets_that_cannot_be_cut_are_not_tried_again() {
        let mut search = Search::new(PRESENT, rounds());
        search.measured(1.0);
        assert_eq!(search.next().unwrap().bucket_bytes, 1);
        search.keep_buckets(10);
        let rest: Vec<Tuning> = std::iter::from_fn(|| search.next()).collect();
        assert!(rest.len() == 3 && rest.iter().all(|tuning| tuning.bucket_bytes == 10), "{rest:?}");
    }
}
