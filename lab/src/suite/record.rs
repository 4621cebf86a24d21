//! Records of the suite's trainings: one line of JSON each.

use super::{Cell, MatrixCell};
use crate::link::{NetworkLink, RankWork};
use crate::outcome::{CurvePoint, TrainingOutcome};
use crate::training::Training;
use hexagram::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

/// State of a training after some steps.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingState {
    /// Number of steps.
    pub step: u64,
    /// Loss of the mean replica, infinite if it is not finite any more.
    pub loss: f64,
    /// Accuracy of the mean replica, if the task has one.
    pub accuracy: Option<f64>,
    /// Consensus distance of the replicas.
    pub consensus: f64,
    /// Bytes that the average rank has sent.
    pub bytes: f64,
    /// Maximum number of bytes that a rank has sent.
    pub most_bytes: u64,
    /// Most messages that a rank has sent.
    pub most_messages: u64,
}

/// Record of one training.
#[derive(Debug, Clone, PartialEq)]
pub struct SuiteRecord {
    /// Algorithm, task, partition and number of ranks.
    pub place: MatrixCell,
    /// Seed of everything that was drawn.
    pub seed: u64,
    /// Trigram of the algorithm, as a character.
    pub trigram: String,
    /// True if ranks waited for each other in every step.
    pub synchronous: bool,
    /// Learning rate γ.
    pub learning_rate: f64,
    /// Mean of the losses of the replicas after the last step, one by one.
    pub own_loss: f64,
    /// Distance of the mean replica to the optimum, if the optimum is known.
    pub distance: Option<f64>,
    /// States at regular intervals, from before the first step to after the last; only the last if NaN or infinity has
    /// ended the training.
    pub curve: Vec<TrainingState>,
}

impl TrainingState {
    fn new(point: &CurvePoint) -> Self {
        TrainingState {
            step: point.step,
            loss: finite(point.evaluation.loss),
            accuracy: point.evaluation.accuracy,
            consensus: finite(point.consensus),
            bytes: point.mean_bytes(),
            most_bytes: point.bytes.iter().copied().max().unwrap_or(0),
            most_messages: point.messages.iter().copied().max().unwrap_or(0),
        }
    }

    fn json(&self) -> Value {
        json!([
            self.step,
            number(self.loss),
            self.accuracy,
            number(self.consensus),
            number(self.bytes),
            self.most_bytes,
            self.most_messages
        ])
    }

    fn parse(value: &Value) -> Option<Self> {
        Some(TrainingState {
            step: value[0].as_u64()?,
            loss: value[1].as_f64().unwrap_or(f64::INFINITY),
            accuracy: value[2].as_f64(),
            consensus: value[3].as_f64().unwrap_or(f64::INFINITY),
            bytes: value[4].as_f64().unwrap_or(f64::INFINITY),
            most_bytes: value[5].as_u64()?,
            most_messages: value[6].as_u64()?,
        })
    }
}

impl SuiteRecord {
    pub(super) fn new(cell: &Cell, training: &Training, outcome: &TrainingOutcome) -> Self {
        SuiteRecord {
            place: cell.place(),
            seed: cell.seed,
            trigram: cell.algorithm.trigram().symbol().to_string(),
            synchronous: outcome.synchronous,
            learning_rate: training.learning_rate.base,
            own_loss: finite(outcome.own.loss),
            distance: outcome.last().evaluation.distance.map(finite),
            curve: outcome.curve.iter().map(TrainingState::new).collect(),
        }
    }

    /// Creates the record of a training that ended before its last step because of NaN or infinity in an encoding.
    /// Its loss is infinite, and so are its unknown values.
    pub(super) fn diverged(cell: &Cell, training: &Training) -> Self {
        let never = f64::INFINITY;
        let last = TrainingState {
            step: training.steps,
            loss: never,
            accuracy: None,
            consensus: never,
            bytes: never,
            most_bytes: 0,
            most_messages: 0,
        };
        let trigram = cell.algorithm.trigram();
        SuiteRecord {
            place: cell.place(),
            seed: cell.seed,
            trigram: trigram.symbol().to_string(),
            synchronous: trigram.synchronous,
            learning_rate: training.learning_rate.base,
            own_loss: never,
            distance: None,
            curve: vec![last],
        }
    }

    /// Returns the state after the last step.
    pub fn last(&self) -> &TrainingState {
        // A record has a state after the last step, or at its early end.
        &self.curve[self.curve.len() - 1]
    }

    /// Returns the seconds up to a state over a network.
    pub fn seconds(&self, link: &NetworkLink, state: &TrainingState) -> f64 {
        let TrainingState { step: steps, most_bytes: bytes, most_messages: messages, .. } = *state;
        link.seconds(RankWork { steps, bytes, messages, synchronous: self.synchronous })
    }

    /// Returns the line of JSON that [`parse`](Self::parse) reads.
    pub fn json(&self) -> String {
        let MatrixCell { algorithm, task, partition, ranks } = &self.place;
        json!({
            "algorithm": algorithm, "task": task, "partition": partition, "ranks": ranks, "seed": self.seed,
            "trigram": self.trigram, "synchronous": self.synchronous, "learning_rate": self.learning_rate,
            "own_loss": number(self.own_loss), "distance": self.distance.map(number),
            "curve": self.curve.iter().map(TrainingState::json).collect::<Vec<_>>(),
        })
        .to_string()
    }

    /// Reads a line of JSON.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not of a record.
    pub fn parse(line: &(impl AsRef<[u8]> + ?Sized)) -> Result<Self> {
        let line = line.as_ref();
        let record = serde_json::from_slice(line).ok().and_then(|value: Value| Self::of(&value));
        record.filter(|record| !record.curve.is_empty()).ok_or_else(|| {
            let text = String::from_utf8_lossy(line);
            let shown: String = text.trim_end().chars().take(60).collect();
            let shown = shown.replace(char::is_control, "\u{fffd}");
            Error::usage(format!("`{shown}` is not a record of a training"), "remove the line, or the file")
        })
    }

    /// Reads a line of a file, whose number counts from 1.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), with the file and the number.
    pub(crate) fn parse_line(path: &Path, number: usize, line: &[u8]) -> Result<Self> {
        Self::parse(line).map_err(|error| match error {
            Error::Usage { what, remedy } => {
                Error::usage(format!("{}, line {number}: {what}", path.display()), remedy)
            }
            other => other,
        })
    }

    /// Returns true if these bytes may be the beginning of a record's line, as a killed process leaves it.
    pub(crate) fn may_begin(bytes: &[u8]) -> bool {
        const BEGIN: &[u8] = br#"{"algorithm":""#;
        bytes.starts_with(BEGIN) || BEGIN.starts_with(bytes)
    }

    fn of(value: &Value) -> Option<Self> {
        let text = |field: &str| value[field].as_str().map(str::to_owned);
        Some(SuiteRecord {
            place: MatrixCell {
                algorithm: text("algorithm")?,
                task: text("task")?,
                partition: text("partition")?,
                ranks: value["ranks"].as_u64()? as usize,
            },
            seed: value["seed"].as_u64()?,
            trigram: text("trigram")?,
            synchronous: value["synchronous"].as_bool()?,
            learning_rate: value["learning_rate"].as_f64()?,
            own_loss: value["own_loss"].as_f64().unwrap_or(f64::INFINITY),
            distance: value["distance"].as_f64(),
            curve: value["curve"].as_array()?.iter().map(TrainingState::parse).collect::<Option<_>>()?,
        })
    }
}

/// Returns a number, infinite in place of NaN.
fn finite(number: f64) -> f64 {
    if number.is_nan() { f64::INFINITY } else { number }
}

/// Returns a number as a JSON value: null if it is infinite.
fn number(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}
