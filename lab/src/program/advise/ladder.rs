//! Bandwidths up to which an algorithm pays: those of the link times powers of two, of which bisection tries few.

use super::advice::Border;
use super::candidate::{Candidate, at_least};
use crate::program::simulate::job::{Job, Point};
use crate::program::simulate::report::Row;
use hexagram::Result;
use std::collections::BTreeMap;

/// Exponent of the largest factor, of which the reciprocal is the least.
pub(super) const HIGHEST: i32 = 5;

/// Steps that are counted at least where something of their time is drawn.
const DRAWN: u32 = 20;

/// Share of the reference's step that an algorithm has to save to pay.
pub(super) const WORTH: f64 = 0.05;

/// Clusters that differ in the bandwidth of the link between hosts only.
pub(super) struct Ladder<'a> {
    job: &'a Job<'a>,
    here: Point,
    reference: Candidate,
    /// Figures of the reference by exponent, each simulated once.
    known: BTreeMap<i32, Row>,
}

impl<'a> Ladder<'a> {
    pub(super) fn new(job: &'a Job<'a>, here: Point, reference: Candidate) -> Self {
        Ladder { job, here, reference, known: BTreeMap::new() }
    }

    /// Returns the bandwidth of an exponent.
    pub(super) fn border(&self, exponent: i32) -> Border {
        Border { bandwidth: self.at(exponent).link.bandwidth * 8.0, is_highest: exponent == HIGHEST }
    }

    fn at(&self, exponent: i32) -> Point {
        let mut point = self.here.clone();
        point.link.bandwidth *= 2f64.powi(exponent);
        point
    }

    /// Returns what the reference takes.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn reference(&mut self, exponent: i32) -> Result<Row> {
        if let Some(row) = self.known.get(&exponent) {
            return Ok(row.clone());
        }
        let row = self.simulated(&self.reference, exponent)?;
        self.known.insert(exponent, row.clone());
        Ok(row)
    }

    /// Returns what an algorithm takes.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn simulated(&self, candidate: &Candidate, exponent: i32) -> Result<Row> {
        let least = if self.job.varies(&self.here) { DRAWN } else { 1 };
        self.job.row(&candidate.chosen, &self.at(exponent), at_least(least, candidate.steps))
    }

    /// Returns the highest exponent with which an algorithm pays, if it pays with one, provided that it does with all
    /// lower ones, too; `pays_here` says if it does with exponent 0.
    ///
    /// # Errors
    /// That of a rank.
    pub(super) fn highest(&mut self, candidate: &Candidate, pays_here: bool) -> Result<Option<i32>> {
        let range = if pays_here { 0..HIGHEST + 1 } else { -HIGHEST - 1..0 };
        let highest = last(range, |exponent| self.pays(candidate, exponent))?;
        Ok((highest >= -HIGHEST).then_some(highest))
    }

    fn pays(&mut self, candidate: &Candidate, exponent: i32) -> Result<bool> {
        let reference = self.reference(exponent)?;
        // Nothing is faster than no communication at all.
        if reference.communication() < WORTH {
            return Ok(false);
        }
        let own = self.simulated(candidate, exponent)?;
        Ok(pays(&own, &reference))
    }
}

/// Returns true if one saves enough against the other.
pub(super) fn pays(own: &Row, reference: &Row) -> bool {
    saved(own, reference) >= WORTH
}

/// Returns the share of the reference's step that an algorithm saves; below 0 if it is slower.
pub(super) fn saved(own: &Row, reference: &Row) -> f64 {
    1.0 - own.figures.step_s / reference.figures.step_s
}

/// Returns the last number of a range for which something holds that holds for its first one, and for no number after
/// one for which it does not. The first is not tried.
fn last<E>(
    range: std::ops::Range<i32>,
    mut holds: impl FnMut(i32) -> std::result::Result<bool, E>,
) -> std::result::Result<i32, E> {
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
        for border in -6..=5 {
            for range in [0..6, -6..0] {
                let mut tries = 0;
                let holds = |number: i32| {
                    tries += 1;
                    assert!(range.contains(&number) && number != range.start);
                    Ok::<bool, ()>(number <= border)
                };
                let found = last(range.clone(), holds).unwrap();
                assert_eq!(found, border.clamp(range.start, range.end - 1));
                assert!(tries <= 3, "{tries}");
            }
        }
    }
}
