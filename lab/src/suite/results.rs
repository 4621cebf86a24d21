//! Numbers of the suite, by query.

use super::{Estimate, SEEDS, SuiteRecord};
use crate::link::NetworkLink;
use std::fmt;

/// Place of a training in the matrix; runs that differ in the seed only have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatrixCell {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Name of the task.
    pub task: String,
    /// Partition, as it displays itself.
    pub partition: String,
    /// Number of ranks.
    pub ranks: usize,
}

impl fmt::Display for MatrixCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MatrixCell { algorithm, task, partition, ranks } = self;
        write!(f, "{algorithm} on {task}, {partition}, {ranks} ranks")
    }
}

/// Quantity that runs are compared by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResultMeasure {
    /// Loss of the mean replica after the last step.
    Loss,
    /// Mean of the replicas' own losses after the last step.
    OwnLoss,
    /// Share of errors of the mean replica on held-out samples: 1 − accuracy.
    Errors,
    /// Consensus distance after the last step.
    Consensus,
    /// Bytes that the average rank has sent in all steps; infinite if the training diverged, and ended early.
    Bytes,
    /// Maximum number of bytes that the average rank has sent from one recorded state to the next.
    PeakBytes,
    /// Bytes of the average rank until the mean replica has an accuracy; infinite if it never has.
    BytesTo(f64),
    /// Seconds over a link until the mean replica has an accuracy; infinite if it never has.
    SecondsTo(f64, NetworkLink),
}

impl ResultMeasure {
    /// Measures a run; the less, the better.
    pub fn of(self, record: &SuiteRecord) -> f64 {
        let reached = |accuracy: f64| {
            record.curve.iter().find(|state| state.accuracy.is_some_and(|found| found >= accuracy))
        };
        match self {
            ResultMeasure::Loss => record.last().loss,
            ResultMeasure::OwnLoss => record.own_loss,
            ResultMeasure::Errors => record.last().accuracy.map_or(f64::INFINITY, |accuracy| 1.0 - accuracy),
            ResultMeasure::Consensus => record.last().consensus,
            ResultMeasure::Bytes => record.last().bytes,
            ResultMeasure::PeakBytes => {
                let sent = record.curve.windows(2).map(|pair| pair[1].bytes - pair[0].bytes);
                sent.reduce(f64::max).unwrap_or(f64::INFINITY)
            }
            ResultMeasure::BytesTo(accuracy) => reached(accuracy).map_or(f64::INFINITY, |state| state.bytes),
            ResultMeasure::SecondsTo(accuracy, link) => {
                reached(accuracy).map_or(f64::INFINITY, |state| record.seconds(&link, state))
            }
        }
    }
}

impl fmt::Display for ResultMeasure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResultMeasure::Loss => f.write_str("loss"),
            ResultMeasure::OwnLoss => f.write_str("loss of the replicas"),
            ResultMeasure::Errors => f.write_str("errors"),
            ResultMeasure::Consensus => f.write_str("consensus distance"),
            ResultMeasure::Bytes => f.write_str("bytes"),
            ResultMeasure::PeakBytes => f.write_str("peak of bytes"),
            ResultMeasure::BytesTo(accuracy) => write!(f, "bytes to {} %", 100.0 * accuracy),
            ResultMeasure::SecondsTo(accuracy, link) => {
                write!(f, "seconds to {} %, {link}", 100.0 * accuracy)
            }
        }
    }
}

/// Records of the suite.
#[derive(Debug, Clone, Default)]
pub struct Results(Vec<SuiteRecord>);

impl Results {
    /// Creates results of records, in the order of their places.
    pub fn new(mut records: Vec<SuiteRecord>) -> Self {
        records.sort_by(|one, other| (&one.place, one.seed).cmp(&(&other.place, other.seed)));
        Results(records)
    }

    /// Returns all records.
    pub fn records(&self) -> &[SuiteRecord] {
        &self.0
    }

    /// Returns the records with the seeds of the matrix; records that only orderings need have different seeds.
    pub(super) fn of_matrix(&self) -> Self {
        Results(self.0.iter().filter(|record| record.seed < SEEDS).cloned().collect())
    }

    /// Returns the runs at a place, by seed.
    pub fn at(&self, place: &MatrixCell) -> Vec<&SuiteRecord> {
        self.0.iter().filter(|record| record.place == *place).collect()
    }

    /// Estimates a measure at a place; `None` if nothing was run there.
    pub fn estimate(&self, place: &MatrixCell, measure: ResultMeasure) -> Option<Estimate> {
        let values: Vec<f64> = self.at(place).into_iter().map(|record| measure.of(record)).collect();
        Estimate::of(&values)
    }

    /// Estimates the difference of a measure between two places, over pairs of a place and its reference with equal
    /// seeds; `None` if both were never run with one seed.
    pub fn difference(&self, pairs: &[[MatrixCell; 2]], measure: ResultMeasure) -> Option<Estimate> {
        let of_pair = |[own, reference]: &[MatrixCell; 2]| -> Vec<(u64, f64)> {
            let reference = self.at(reference);
            let same = |seed: u64| reference.iter().find(|record| record.seed == seed);
            let above = |record: &SuiteRecord| Some(measure.of(record) - measure.of(same(record.seed)?));
            self.at(own).into_iter().filter_map(|record| Some((record.seed, above(record)?))).collect()
        };
        Estimate::by_seed(&pairs.iter().map(of_pair).collect::<Vec<_>>())
    }
}
