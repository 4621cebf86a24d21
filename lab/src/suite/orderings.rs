//! Orderings that papers have published, each judged by the suite's numbers: which of two algorithms is better, when,
//! and by which measure.
//!
//! To add one, add a [`Claim`] to the file of its subject. The suite runs both sides of each with [`ORDERING_SEEDS`]
//! seeds, and its page lists all of them with the numbers of both sides and the verdict of the [paired
//! test](super::Paired). 31 of the 40 are as chosen from the papers, before their numbers were known. The others were
//! corrected or added later, and the page lists them with the reasons ([`Claim::changed`]). An ordering that fails
//! stays, with an explanation. A variant with options has the step sizes of its algorithm.
//!
//! | file | orderings |
//! |---|---|
//! | `heterogeneity.rs` | data that differ between ranks |
//! | `compression.rs` | codecs and the compensation of their errors |
//! | `volume.rs` | bytes up to an accuracy |
//! | `rounds.rs` | local steps, and outer optimizers |
//! | `graphs.rs` | graphs of gossip |
//! | `time.rs` | seconds over a slow network |
//! | `table.rs` | the table of all on the suite's page |

mod compression;
mod graphs;
mod heterogeneity;
mod rounds;
mod table;
mod time;
mod volume;

pub(super) use table::table;

use super::{Estimate, MatrixCell, OrderingVerdict, Paired, ResultMeasure, Results};
use std::collections::BTreeSet;

/// Number of seeds with which both sides of an ordering are run.
pub const ORDERING_SEEDS: u64 = 10;

/// Published ordering of two algorithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Claim {
    /// Paper, by authors and arXiv number.
    pub source: &'static str,
    /// Passage of the paper with the claim.
    pub passage: &'static str,
    /// Ordering in words.
    pub text: &'static str,
    /// Side that should be better, with the algorithm's spelling.
    pub better: &'static str,
    /// Side that should be worse, with the algorithm's spelling.
    pub worse: &'static str,
    /// Task of the suite on which it is judged.
    pub task: &'static str,
    /// Partition of the suite, as it displays itself.
    pub partition: &'static str,
    /// Number of ranks.
    pub ranks: usize,
    /// Quantity that is smaller on the better side.
    pub measure: ResultMeasure,
    /// Largest claimed ratio of the better side's quantity to the worse side's: below 1 to claim a distance, above 1
    /// for "nearly as good".
    pub factor: f64,
    /// Verdict from the kept record.
    pub verdict: OrderingVerdict,
    /// Reason why the suite's numbers differ; empty if the ordering holds.
    pub explanation: &'static str,
    /// Change made after the first numbers were known, with its reason; empty for an unchanged comparison.
    pub changed: &'static str,
}

impl Claim {
    /// Returns the places of both sides, better side first.
    pub fn places(&self) -> [MatrixCell; 2] {
        [self.better, self.worse].map(|algorithm| MatrixCell {
            algorithm: algorithm.to_owned(),
            task: self.task.to_owned(),
            partition: self.partition.to_owned(),
            ranks: self.ranks,
        })
    }

    /// Returns both sides' quantities for each seed that both were run with.
    pub fn paired(&self, results: &Results) -> Paired {
        let [better, worse] = self.places().map(|place| results.at(&place));
        Paired::of(better.into_iter().filter_map(|one| {
            let other = worse.iter().find(|other| other.seed == one.seed)?;
            Some([one, *other].map(|record| self.measure.of(record)))
        }))
    }

    /// Judges the ordering by results of the suite.
    pub fn judge(&self, results: &Results) -> OrderingVerdict {
        self.paired(results).verdict(self.factor)
    }

    /// Returns the numbers of the better and the worse one.
    pub fn numbers(&self, results: &Results) -> [Option<Estimate>; 2] {
        self.places().map(|place| results.estimate(&place, self.measure))
    }
}

/// Returns all orderings that are judged, by subject.
pub fn orderings() -> impl Iterator<Item = &'static Claim> {
    let subjects = [
        heterogeneity::ORDERINGS,
        compression::ORDERINGS,
        volume::ORDERINGS,
        rounds::ORDERINGS,
        graphs::ORDERINGS,
        time::ORDERINGS,
    ];
    subjects.into_iter().flatten()
}

/// Returns the places that the suite must run with [`ORDERING_SEEDS`] seeds to judge every ordering.
pub fn places() -> BTreeSet<MatrixCell> {
    orderings().flat_map(Claim::places).collect()
}

/// Name of the partition into equal shares, with equal data on all ranks.
const EQUAL: &str = "equal";
/// Name of the partition by label in which data differ most.
pub(super) const SKEWED: &str = "dirichlet(0.1)";
/// Target accuracy on the digits: bytes and seconds are counted until it is reached.
pub(super) const LEARNED: f64 = 0.9;

/// Creates a claim that `better` has less of a quantity than `worse` on the digits, with equal data on 8 ranks.
const fn beats(better: &'static str, worse: &'static str, measure: ResultMeasure) -> Claim {
    Claim {
        source: "",
        passage: "abstract",
        text: "",
        better,
        worse,
        task: "digits",
        partition: EQUAL,
        ranks: 8,
        measure,
        factor: 1.0,
        verdict: OrderingVerdict::Holds,
        explanation: "",
        changed: "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Suite, SuiteRecord, TrainingState};
    use hexagram::algorithms::registry;

    fn record(place: MatrixCell, seed: u64, loss: f64) -> SuiteRecord {
        let state = TrainingState {
            step: 1,
            loss,
            accuracy: None,
            consensus: 0.0,
            bytes: 0.0,
            most_bytes: 0,
            most_messages: 0,
        };
        SuiteRecord {
            place,
            seed,
            trigram: "☰".to_owned(),
            synchronous: true,
            learning_rate: 0.1,
            own_loss: loss,
            distance: None,
            curve: vec![state],
        }
    }

    #[test]
    fn sides_are_compared_seed_by_seed() {
        let claim = beats("one", "other", ResultMeasure::Loss);
        let [one, other] = claim.places();
        let records = vec![
            record(other.clone(), 2, 20.0),
            record(one.clone(), 1, 1.0),
            record(one, 2, 5.0),
            record(other.clone(), 1, 4.0),
            record(other, 3, 1.0),
        ];
        let results = Results::new(records);
        assert_eq!(claim.paired(&results), Paired::of([[1.0, 4.0], [5.0, 20.0]]));
        assert_eq!(claim.judge(&results), OrderingVerdict::Holds);
        assert_eq!(beats("one", "none", ResultMeasure::Loss).judge(&results), OrderingVerdict::Missing);
    }

    #[test]
    fn every_ordering_is_of_sides_and_places_that_there_are() {
        let partitions = crate::suite::PARTITIONS.map(|partition| partition.to_string());
        for claim in orderings() {
            for side in [claim.better, claim.worse] {
                // Records bear the name that the algorithm prints.
                assert_eq!(registry::named(side).unwrap().to_string(), side, "{claim:?}");
            }
            assert!(partitions.iter().any(|partition| partition == claim.partition), "{claim:?}");
            assert!(["quadratics", "noisy-quadratics", "digits", "text"].contains(&claim.task), "{claim:?}");
            let said = [claim.source, claim.passage, claim.text];
            assert!(said.iter().all(|text| !text.is_empty()), "{claim:?}");
            assert_eq!(claim.explanation.is_empty(), claim.verdict == OrderingVerdict::Holds, "{claim:?}");
        }
    }

    #[test]
    fn there_are_40_different_orderings() {
        let told: BTreeSet<&str> = orderings().map(|claim| claim.text).collect();
        assert_eq!(told.len(), 40);
        assert_eq!(orderings().count(), 40);
    }

    /// So that the suite's page has one of one's own under its name, with whatever defaults.
    #[test]
    fn algorithms_of_the_matrix_are_recorded_by_name() {
        let slowmo = registry::named("slowmo(period=3)").unwrap();
        let cells = Suite::short(vec![slowmo]).unwrap().cells().unwrap();
        assert!(cells.iter().all(
            |cell| cell.place().algorithm == "slowmo" && cell.algorithm.to_string() == "slowmo(period=3)"
        ));
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let [place, _] = beats("one", "other", ResultMeasure::Loss).places();
        for loss in [0.25, f64::INFINITY] {
            let record = record(place.clone(), 3, loss);
            assert_eq!(SuiteRecord::parse(&record.json()).unwrap(), record);
        }
        assert!(SuiteRecord::parse("{}").unwrap_err().to_string().contains("not a record"));
    }
}
