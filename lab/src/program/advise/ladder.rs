//! Bandwidths up to which an algorithm pays: bisection tries a few values of a fixed series.

use super::advice::Border;
use super::candidate::{Candidate, at_least};
use crate::program::simulate::job::{ClusterPoint, SimulatedJob};
use crate::program::simulate::report::ReportRow;
use hexagram::Result;
use std::collections::BTreeMap;

/// Bandwidths that are tried, in bits a second: the same whatever the link is, so that borders do not depend on it.
const RUNGS: [f64; 18] =
    [1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10, 2e10, 5e10, 1e11, 2e11, 5e11];

/// Minimum number of counted steps if their time is partly random.
const DRAWN: u32 = 20;

/// Share of the reference's step that an algorithm must save to pay.
pub(super) const WORTH: f64 = 0.05;

/// Clusters that differ in the bandwidth of the link between hosts only.
pub(super) struct Ladder<'a> {
    job: &'a SimulatedJob<'a>,
    here: ClusterPoint,
    reference: Candidate,
    /// Figures of the reference by rung, each simulated once.
    known: BTreeMap<usize, ReportRow>,
}

impl<'a> Ladder<'a> {
    pub(super) fn new(job: &'a SimulatedJob<'a>, here: ClusterPoint, reference: Candidate) -> Self {
        Ladder { job, here, reference, known: BTreeMap::new() }
    }

    /// Returns the cost of an algorithm on the cluster itself.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn here(&self, candidate: &Candidate) -> Result<ReportRow> {
        self.simulated(candidate, &self.here)
    }

    /// Returns the cost of the reference on the cluster itself.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn reference_here(&self) -> Result<ReportRow> {
        self.here(&self.reference)
    }

    /// Returns the highest bandwidth at which an algorithm pays, if it pays at any. The search assumes that the algorithm also
    /// pays at all lower bandwidths.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn border(&mut self, candidate: &Candidate) -> Result<Option<Border>> {
        // Number 0 is below the lowest rung.
        let highest = last(0..RUNGS.len() + 1, |number| self.pays(candidate, number - 1))?;
        let next = RUNGS.get(highest).copied();
        Ok(highest.checked_sub(1).map(|rung| Border { pays: RUNGS[rung], next }))
    }

    fn pays(&mut self, candidate: &Candidate, rung: usize) -> Result<bool> {
        let reference = self.reference_at(rung)?;
        // Nothing is faster than no communication at all.
        if reference.communication() < WORTH {
            return Ok(false);
        }
        let own = self.simulated(candidate, &self.at(rung))?;
        Ok(saved(&own, &reference) >= WORTH)
    }

    fn reference_at(&mut self, rung: usize) -> Result<ReportRow> {
        if let Some(row) = self.known.get(&rung) {
            return Ok(row.clone());
        }
        let row = self.simulated(&self.reference, &self.at(rung))?;
        self.known.insert(rung, row.clone());
        Ok(row)
    }

    fn at(&self, rung: usize) -> ClusterPoint {
        let mut point = self.here.clone();
        point.link.bandwidth = RUNGS[rung] / 8.0;
        point
    }

    fn simulated(&self, candidate: &Candidate, point: &ClusterPoint) -> Result<ReportRow> {
        let least = if self.job.varies(&self.here) { DRAWN } else { 1 };
        self.job.row(&candidate.chosen, point, at_least(least, candidate.steps))
    }
}

/// Returns the share of the reference's step that an algorithm saves; below 0 if it is slower.
pub(super) fn saved(own: &ReportRow, reference: &ReportRow) -> f64 {
    1.0 - own.figures.step_s / reference.figures.step_s
}

/// Returns the last number of a range that satisfies a condition. The first number must satisfy it, and is not tried. All
/// numbers after one that does not satisfy it must not satisfy it either.
fn last<E>(
    range: std::ops::Range<usize>,
    mut holds: impl FnMut(usize) -> std::result::Result<bool, E>,
) -> std::result::Result<usize, E> {
    let mut low = range.start;
    let mut high = range.end;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_holds_is_found_in_few_tries() {
        for border in 0..=18 {
            let mut tries = 0;
            let holds = |number: usize| {
                tries += 1;
                assert!((1..19).contains(&number));
                Ok::<bool, ()>(number <= border)
            };
            assert_eq!(last(0..19, holds), Ok(border));
            assert!(tries <= 5, "{tries}");
        }
    }
}
