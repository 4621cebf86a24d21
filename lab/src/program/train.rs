//! `train`: trains a small task by any algorithm of a registry, on real ranks, and prints how it went.

use super::arguments::information;
use super::console::{ProgramError, bytes, percent, print};
use super::table::Table;
use super::{ChosenAlgorithm, Setting, record};
use crate::outcome::{CurvePoint, TrainingOutcome};
use crate::training::{Training, train_on};
use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram::{Communicator, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Train a small model by an algorithm, on several ranks.
///
/// Under mpirun, srun, torchrun or `hexagram run`, this process is one rank; otherwise it starts the ranks itself.
///
/// By default, the learning rate is that of the suite for the algorithm and the task. Options of the algorithm that are not
/// given have the defaults that `help:NAME` prints, for every task. Second step sizes that the suite has tuned must be given,
/// as in 'slowmo(slow_rate=2)'.
#[derive(Parser, Debug, Clone)]
pub struct TrainOptions {
    /// Algorithm of the ranks, with options as in 'choco-sgd(codec=top-k(5%), graph=torus)'; `list` prints the
    /// choices, and `help:NAME` the options of one
    #[arg(long, default_value = "gradient-allreduce")]
    pub algorithm: String,
    /// Folder for metrics.jsonl, with the loss of every step and the metrics of the algorithm
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Task, data, ranks and optimizer.
    #[command(flatten)]
    pub setting: Setting,
}

/// Runs `train`: as one of a launcher's ranks, or with ranks that it starts. Returns the exit code.
///
/// # Errors
/// The first invalid option, before any rank starts; errors of the ranks.
pub fn train(registry: &Registry, options: &TrainOptions) -> Result<u8, ProgramError> {
    let optimizer = options.setting.stepping.optimizer.as_deref();
    if let Some(text) = information(registry, &options.algorithm, optimizer) {
        print(&text?)?;
        return Ok(0);
    }
    let chosen = ChosenAlgorithm::named(registry, &options.algorithm)?;
    let training = options.setting.training(&chosen)?;
    let ranks = options.setting.ranks("train", [&training]);
    if let Some(count) = ranks.to_start()? {
        training.check_for(count)?;
        options.out.as_deref().map_or(Ok(()), record::prepare)?;
    }
    let ran = ranks.run(|world| {
        let comm = Communicator::open(world, 0)?;
        let mut table = Table::new(&comm);
        let place = format!("{} ranks over {}", comm.size(), ranks.transport);
        let optimizer = training.optimizer.as_ref().map(|optimizer| optimizer.spelled()).unwrap_or_default();
        let rate = training.learning_rate;
        let with = format!("{}, {optimizer} with learning rate {rate}", chosen.spelling);
        table.line(&format!("{}, {place}: {with}", training.about()))?;
        let outcome = train_on(&comm, &training)?;
        if let (Some(folder), Some(outcome)) = (&options.out, &outcome) {
            record::prepare(folder)?;
            record::write(folder, &chosen.spelling, outcome)?;
        }
        let lines = outcome.map(|outcome| describe(&training, &outcome)).unwrap_or_default();
        table.line(&lines)?;
        Ok(table.finish())
    })?;
    Ok(ran.code()?)
}

impl Training {
    /// Returns the training, in a few words.
    pub(super) fn about(&self) -> String {
        format!("{}, {} data, {} steps", self.task.name(), self.partition, self.steps)
    }
}

/// Returns the curve of a training, and its costs.
fn describe(training: &Training, outcome: &TrainingOutcome) -> String {
    let heading = format!(
        "{:>6}  {:>10}  {:>9}  {:>10}  {:>11}  {:>8}",
        "step", "loss", "accuracy", "apart", "sent a rank", "seconds"
    );
    let last = outcome.last();
    let steps = training.steps as f64;
    let costs = format!(
        "{:.3} ms and {} a rank and step, without headers; loss of the replicas one by one {:.4}",
        1e3 * last.seconds / steps,
        bytes((last.mean_bytes() / steps) as u64),
        outcome.own.loss
    );
    let lines = outcome.curve.iter().map(line);
    let lines =
        [heading].into_iter().chain(lines).chain(divergence(outcome)).chain([costs]).chain(metrics(outcome));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a line about divergence if a training has diverged.
fn divergence(outcome: &TrainingOutcome) -> Option<String> {
    let first = outcome.first(|point| !point.evaluation.loss.is_finite())?;
    Some(format!("diverged: the loss is not a number after step {}; choose a smaller --lr", first.step))
}

/// Returns a line for each number that the algorithm gives out, with its last value.
fn metrics(outcome: &TrainingOutcome) -> impl Iterator<Item = String> {
    let mut last = BTreeMap::new();
    for step in &outcome.steps {
        last.extend(step.metrics.iter().map(|(name, value)| (name, (step.step, value))));
    }
    let told: Vec<String> =
        last.into_iter().map(|(name, (step, value))| format!("{name}: {value:.4} in step {step}")).collect();
    told.into_iter()
}

fn line(point: &CurvePoint) -> String {
    format!(
        "{:>6}  {:>10.4}  {:>9}  {:>10.4}  {:>11}  {:>8.2}",
        point.step,
        point.evaluation.loss,
        percent(point.evaluation.accuracy.unwrap_or(f64::NAN)),
        point.consensus,
        bytes(point.mean_bytes() as u64),
        point.seconds
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Quadratics;
    use crate::training::train;
    use std::sync::Arc;

    #[test]
    fn a_training_that_diverges_says_so() {
        let with = |rate: f64| {
            let task = Arc::new(Quadratics::new(0).unwrap());
            let training = Training { learning_rate: rate.into(), steps: 10, ..Training::of(task) };
            describe(&training, &train(&training).unwrap())
        };
        assert!(with(1e10).contains("\ndiverged: the loss is not a number after step "), "{}", with(1e10));
        assert!(!with(0.1).contains("diverged"));
    }
}
