//! The figures of a training on disk: a line of JSON for each step of rank 0, one for each recorded state, and one at
//! the end.
//!
//! ```text
//! {"event":"step","step":12,"loss":2.19,"learning_rate":0.15,"metrics":{"drift":0.03}}
//! {"event":"state","step":30,"loss":1.12,"accuracy":0.54,"consensus_distance":0.1,"bytes_sent":81920.0,"seconds":0.6}
//! {"event":"summary","algorithm":"local-sgd","ranks":4,"own_loss":1.2,"replicas":["5417ff9e98a6e3c6",…]}
//! ```
//!
//! `replicas` are hashes of the ranks' parameters after the last step.

use crate::outcome::{CurvePoint, StepRecord, TrainingOutcome};
use hexagram::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

/// Creates the folder of a record.
///
/// # Errors
/// [`Error::System`] if it cannot be.
pub(super) fn prepare(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|cause| {
        Error::system(format!("create {}", folder.display()), cause, "choose a writable --out folder")
    })
}

/// Writes `metrics.jsonl` into a folder.
///
/// # Errors
/// [`Error::System`] if it cannot be written.
pub(super) fn write(folder: &Path, spelling: &str, outcome: &TrainingOutcome) -> Result<()> {
    let steps = outcome.steps.iter().map(of_step);
    let states = outcome.curve.iter().map(of_state);
    let ranks = outcome.last().bytes.len();
    let summary = json!({
        "event": "summary", "algorithm": spelling, "ranks": ranks, "own_loss": outcome.own.loss,
        "replicas": hashes(outcome),
    });
    let lines: Vec<String> = steps.chain(states).chain([summary]).map(|line| format!("{line}\n")).collect();
    let path = folder.join("metrics.jsonl");
    std::fs::write(&path, lines.concat()).map_err(|cause| {
        Error::system(format!("write {}", path.display()), cause, "choose a writable --out folder")
    })
}

/// Returns the hashes of all replicas after the last step, in hexadecimal digits.
pub(super) fn hashes(outcome: &TrainingOutcome) -> Vec<String> {
    outcome.replicas.iter().map(|hash| format!("{hash:016x}")).collect()
}

fn of_step(step: &StepRecord) -> Value {
    let StepRecord { step, loss, learning_rate, metrics } = step;
    json!({
        "event": "step", "step": step, "loss": loss, "learning_rate": learning_rate, "metrics": metrics,
    })
}

fn of_state(point: &CurvePoint) -> Value {
    json!({
        "event": "state", "step": point.step, "loss": point.evaluation.loss,
        "accuracy": point.evaluation.accuracy, "consensus_distance": point.consensus,
        "bytes_sent": point.mean_bytes(), "seconds": point.seconds,
    })
}
