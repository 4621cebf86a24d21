//! Search for the step sizes of [`tuned`](crate::tuned): one procedure for every algorithm and task.
//!
//! 1. γ starts at the table's value (0.1 for a new algorithm), and moves on the grid …, 0.03, 0.1, 0.3, … to where
//!    the loss rises on both sides.
//! 2. An algorithm with a second step size (the rate of an outer optimizer, a consensus step: [`SECOND`]) then has that
//!    halved and doubled from its default in the same manner, at the γ found.
//!
//! For a variant with options, which orderings compare, γ is found in the same way on their tasks. Its second step
//! size is that of its algorithm, unless it names one.
//!
//! The loss is the mean loss of the single replicas after the suite's number of steps, on Dirichlet(1) data of 8
//! ranks, with a seed outside the suite.

use super::{Lesson, PARTITIONS};
use crate::learning_rates::tuned;
use crate::training::{Training, train};
use hexagram::algorithms::registry;
use hexagram::{AnyAlgorithm, Result};
use std::sync::Arc;

/// Learning rates that may be found.
const RATES: [f64; 10] = [3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];
/// Seed of the trainings.
const SEED: u64 = 1000;

/// Second step sizes: algorithm, spelling around the value, default, and largest value.
pub(super) const SECOND: &[(&str, [&str; 2], f64, f64)] = &[
    ("diloco", ["outer=nesterov(learning_rate=", ")"], 0.7, 2.8),
    ("streaming-diloco", ["outer=nesterov(learning_rate=", ")"], 0.4, 1.6),
    ("slowmo", ["slow_rate=", ""], 1.0, 4.0),
    ("choco-sgd", ["consensus=", ""], 0.45, 0.9),
    ("deepsqueeze", ["consensus=", ""], 0.5, 1.0),
    ("noloco", ["outer_rate=", ""], 0.7, 2.8),
    ("easgd", ["beta=", ""], 0.45, 0.9),
];

/// Step sizes that were found.
#[derive(Debug, Clone, PartialEq)]
pub struct TunedSteps {
    /// Learning rate γ.
    pub learning_rate: f64,
    /// Second step size as an option of the algorithm, if it has one.
    pub option: Option<String>,
    /// Loss of the replicas with these.
    pub loss: f64,
}

/// Finds the step sizes of an algorithm on a task.
///
/// # Errors
/// As [`registry::named`], if the table's second step size is not an option of the algorithm.
pub fn tune(algorithm: &AnyAlgorithm, lesson: &Lesson) -> Result<TunedSteps> {
    let spelling = algorithm.to_string();
    let guess = tuned(&spelling, lesson.task.name());
    let algorithm = &if spelling.contains('(') { guess.applied(algorithm)? } else { algorithm.clone() };
    let first =
        RATES.iter().take_while(|rate| **rate < 0.99 * guess.learning_rate).count().min(RATES.len() - 1);
    let (at, mut least) = climb(first, RATES.len(), |at| loss(algorithm, lesson, RATES[at]));
    let learning_rate = RATES[at];
    let mut option = None;
    if let Some((name, around, default, largest)) = SECOND.iter().find(|row| row.0 == spelling) {
        let value = |at: usize| default * 2f64.powi(at as i32 - 2);
        let spelled = |at: usize| format!("{}{}{}", around[0], value(at), around[1]);
        let count = (0..5).filter(|at| value(*at) <= *largest).count();
        let variants: Vec<AnyAlgorithm> = (0..count)
            .map(|at| registry::named(&format!("{name}({})", spelled(at))))
            .collect::<Result<_>>()?;
        let (at, loss) = climb(2, count, |at| loss(&variants[at], lesson, learning_rate));
        option = Some(spelled(at));
        least = loss;
    }
    Ok(TunedSteps { learning_rate, option, loss: least })
}

/// Walks from `first` of `count` places to where the loss rises on both sides, and returns that place and its loss.
fn climb(first: usize, count: usize, mut loss: impl FnMut(usize) -> f64) -> (usize, f64) {
    let mut best = (first, loss(first));
    for step in [1, -1] {
        let before = best.0;
        while let Some(at) = best.0.checked_add_signed(step).filter(|at| *at < count) {
            let found = loss(at);
            // The rate below a diverging one may also diverge.
            let diverges = step < 0 && best.1 == f64::INFINITY;
            if found >= best.1 && !diverges {
                break;
            }
            best = (at, found);
        }
        if best.0 != before {
            break;
        }
    }
    best
}

/// Returns the loss of the replicas; infinite for a rate that an algorithm refuses, or diverges with.
fn loss(algorithm: &AnyAlgorithm, lesson: &Lesson, rate: f64) -> f64 {
    let training = Training {
        algorithm: algorithm.clone(),
        learning_rate: rate.into(),
        ranks: 8,
        partition: PARTITIONS[1],
        seed: SEED,
        steps: lesson.steps,
        records: 1,
        ..Training::of(Arc::clone(&lesson.task))
    };
    let loss = train(&training).map_or(f64::INFINITY, |outcome| outcome.own.loss);
    if loss.is_nan() { f64::INFINITY } else { loss }
}
