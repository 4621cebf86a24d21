//! Record of a training: its curve and its traffic.

use crate::task::{ModelEvaluation, ModelValues};
use hexagram::physical::hash;
use hexagram::{Communicator, Result};
use std::collections::BTreeMap;

/// State of a training after a number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct CurvePoint {
    /// Number of steps that each rank has made.
    pub step: u64,
    /// Judgement of the mean replica.
    pub evaluation: ModelEvaluation,
    /// Consensus distance √(Σᵢ ‖xᵢ − x̄‖² / n) of the replicas.
    pub consensus: f64,
    /// Bytes that each rank has sent so far. In virtual time and on a simulated cluster, message headers count. On
    /// real ranks they do not, so all transports give the same number.
    pub bytes: Vec<u64>,
    /// Messages that each rank has sent so far.
    pub messages: Vec<u64>,
    /// Seconds since the beginning, of the rank that took longest.
    pub seconds: f64,
}

impl CurvePoint {
    /// Returns the bytes that the average rank has sent.
    pub fn mean_bytes(&self) -> f64 {
        mean(&self.bytes)
    }

    /// Returns the messages that the average rank has sent.
    pub fn mean_messages(&self) -> f64 {
        mean(&self.messages)
    }
}

/// Record of one step of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRecord {
    /// Number of the step, from 1.
    pub step: u64,
    /// Loss of the rank's batch.
    pub loss: f64,
    /// Learning rate γ of the step.
    pub learning_rate: f64,
    /// Metrics of the algorithm's hooks in this step, by name.
    pub metrics: BTreeMap<String, f64>,
}

/// Record of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingOutcome {
    /// States at regular intervals, from before the first step to after the last.
    pub curve: Vec<CurvePoint>,
    /// Judgement of the replicas after the last step, one by one: the mean of their losses, accuracies and distances.
    pub own: ModelEvaluation,
    /// True if ranks waited for each other in every step.
    pub synchronous: bool,
    /// Steps of rank 0.
    pub steps: Vec<StepRecord>,
    /// Hash of each rank's parameters after the last step; equal bits give equal hashes.
    pub replicas: Vec<u64>,
}

impl TrainingOutcome {
    /// Returns the state after the last step.
    pub fn last(&self) -> &CurvePoint {
        // A training records its beginning and its end.
        &self.curve[self.curve.len() - 1]
    }

    /// Returns the first state that `reached` accepts.
    pub fn first(&self, reached: impl Fn(&CurvePoint) -> bool) -> Option<&CurvePoint> {
        self.curve.iter().find(|point| reached(point))
    }

    /// Returns true if the replicas of all ranks are equal after the last step, to the last bit.
    pub fn is_identical(&self) -> bool {
        self.replicas.iter().all(|replica| *replica == self.replicas[0])
    }
}

/// Replica of one rank, and the bytes that it has sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) values: ModelValues,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
}

impl Snapshot {
    /// Returns the hash of the bits of all values.
    pub(crate) fn hash(&self) -> u64 {
        let bytes = self.values.iter().flatten().flat_map(|value| value.to_bits().to_le_bytes());
        hash::of_bytes(hash::START, bytes)
    }
}

/// Gathers the snapshots of all ranks, by rank. A collective call: all ranks have the same number of snapshots, of
/// one model.
pub(crate) fn gathered(comm: &Communicator, own: &[Snapshot]) -> Result<Vec<Vec<Snapshot>>> {
    const FIGURES: usize = 3;
    let values: Vec<f32> = own.iter().flat_map(|snapshot| snapshot.values.concat()).collect();
    let figures = |snapshot: &Snapshot| [snapshot.bytes as f64, snapshot.messages as f64, snapshot.seconds];
    let figures: Vec<f64> = own.iter().flat_map(figures).collect();
    let mut all_values = vec![0.0; values.len() * comm.size()];
    let mut all_figures = vec![0.0; figures.len() * comm.size()];
    comm.blocking().all_gather(&values, &mut all_values)?;
    comm.blocking().all_gather(&figures, &mut all_figures)?;
    let mut values = all_values.into_iter();
    let mut figures = all_figures.chunks_exact(FIGURES);
    let mut like = |snapshot: &Snapshot| {
        let values =
            snapshot.values.iter().map(|entry| values.by_ref().take(entry.len()).collect()).collect();
        let figures = figures.next().unwrap_or(&[0.0; FIGURES]);
        Snapshot { values, bytes: figures[0] as u64, messages: figures[1] as u64, seconds: figures[2] }
    };
    Ok((0..comm.size()).map(|_| own.iter().map(&mut like).collect()).collect())
}

/// Makes a point of all ranks' snapshots.
pub(crate) fn point(
    step: u64,
    ranks: &[&Snapshot],
    evaluate: impl Fn(&ModelValues) -> ModelEvaluation,
) -> CurvePoint {
    let count = ranks.len() as f64;
    let replicas: Vec<Vec<f32>> = ranks.iter().map(|rank| rank.values.concat()).collect();
    let elements = replicas[0].len();
    let at = |element: usize| replicas.iter().map(move |replica| f64::from(replica[element]));
    let center: Vec<f64> = (0..elements).map(|element| at(element).sum::<f64>() / count).collect();
    let spread = |element: usize| at(element).map(|x| (x - center[element]).powi(2)).sum::<f64>();
    let consensus = ((0..elements).map(spread).sum::<f64>() / count).sqrt();
    let mut flat = center.into_iter();
    let values: ModelValues = ranks[0]
        .values
        .iter()
        .map(|values| flat.by_ref().take(values.len()).map(|entry| entry as f32).collect())
        .collect();
    CurvePoint {
        step,
        evaluation: evaluate(&values),
        consensus,
        bytes: ranks.iter().map(|rank| rank.bytes).collect(),
        messages: ranks.iter().map(|rank| rank.messages).collect(),
        seconds: ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max),
    }
}

/// Evaluates the last state of each rank separately, and returns the mean.
pub(crate) fn own(
    ranks: &[Vec<Snapshot>],
    evaluate: impl Fn(&ModelValues) -> ModelEvaluation,
) -> ModelEvaluation {
    let judged: Vec<ModelEvaluation> =
        ranks.iter().flat_map(|rank| rank.last()).map(|s| evaluate(&s.values)).collect();
    let count = judged.len() as f64;
    let of = |field: fn(&ModelEvaluation) -> Option<f64>| -> Option<f64> {
        let sum: Option<f64> = judged.iter().map(field).sum();
        sum.map(|sum| sum / count)
    };
    ModelEvaluation {
        loss: judged.iter().map(|evaluation| evaluation.loss).sum::<f64>() / count,
        accuracy: of(|evaluation| evaluation.accuracy),
        distance: of(|evaluation| evaluation.distance),
    }
}

fn mean(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64 / counts.len() as f64
}
