//! Record of a training: its curve, and what was sent.

use crate::task::{Evaluation, Values};

/// State of a training after a number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Number of steps that each rank has made.
    pub step: u64,
    /// Judgement of the mean replica.
    pub evaluation: Evaluation,
    /// Consensus distance √(Σᵢ ‖xᵢ − x̄‖² / n) of the replicas.
    pub consensus: f64,
    /// Bytes that each rank has sent so far, with message headers.
    pub bytes: Vec<u64>,
    /// Messages that each rank has sent so far.
    pub messages: Vec<u64>,
}

impl Point {
    /// Returns the bytes that the average rank has sent.
    pub fn mean_bytes(&self) -> f64 {
        mean(&self.bytes)
    }

    /// Returns the messages that the average rank has sent.
    pub fn mean_messages(&self) -> f64 {
        mean(&self.messages)
    }
}

/// Record of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// States at regular intervals, from before the first step to after the last.
    pub curve: Vec<Point>,
    /// Judgement of the replicas after the last step, one by one: the mean of their losses, accuracies and distances.
    pub own: Evaluation,
    /// True if ranks waited for each other in every step.
    pub synchronous: bool,
}

impl Outcome {
    /// Returns the state after the last step.
    pub fn last(&self) -> &Point {
        // A training records its beginning and its end.
        &self.curve[self.curve.len() - 1]
    }

    /// Returns the first state that `reached` accepts.
    pub fn first(&self, reached: impl Fn(&Point) -> bool) -> Option<&Point> {
        self.curve.iter().find(|point| reached(point))
    }
}

/// Replica of one rank, and what it has sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) values: Values,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

/// Makes a point of all ranks' snapshots.
pub(crate) fn point(step: u64, ranks: &[&Snapshot], evaluate: impl Fn(&Values) -> Evaluation) -> Point {
    let count = ranks.len() as f64;
    let replicas: Vec<Vec<f32>> = ranks.iter().map(|rank| rank.values.concat()).collect();
    let elements = replicas[0].len();
    let at = |element: usize| replicas.iter().map(move |replica| f64::from(replica[element]));
    let center: Vec<f64> = (0..elements).map(|element| at(element).sum::<f64>() / count).collect();
    let spread = |element: usize| at(element).map(|x| (x - center[element]).powi(2)).sum::<f64>();
    let consensus = ((0..elements).map(spread).sum::<f64>() / count).sqrt();
    let mut flat = center.into_iter();
    let values: Values = ranks[0]
        .values
        .iter()
        .map(|values| flat.by_ref().take(values.len()).map(|entry| entry as f32).collect())
        .collect();
    Point {
        step,
        evaluation: evaluate(&values),
        consensus,
        bytes: ranks.iter().map(|rank| rank.bytes).collect(),
        messages: ranks.iter().map(|rank| rank.messages).collect(),
    }
}

/// Judges the last state of each rank by itself, and returns the mean.
pub(crate) fn own(ranks: &[Vec<Snapshot>], evaluate: impl Fn(&Values) -> Evaluation) -> Evaluation {
    let judged: Vec<Evaluation> =
        ranks.iter().flat_map(|rank| rank.last()).map(|s| evaluate(&s.values)).collect();
    let count = judged.len() as f64;
    let of = |field: fn(&Evaluation) -> Option<f64>| -> Option<f64> {
        let sum: Option<f64> = judged.iter().map(field).sum();
        sum.map(|sum| sum / count)
    };
    Evaluation {
        loss: judged.iter().map(|evaluation| evaluation.loss).sum::<f64>() / count,
        accuracy: of(|evaluation| evaluation.accuracy),
        distance: of(|evaluation| evaluation.distance),
    }
}

fn mean(counts: &[u64]) -> f64 {
    counts.iter().sum::<u64>() as f64 / counts.len() as f64
}
