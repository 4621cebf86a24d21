//! `compare`: trains by several algorithms of a registry, by turns on the same ranks, and prints a table.

use super::arguments::information;
use super::console::{ProgramError, bytes, markdown_heading, markdown_row, percent, print};
use super::ranks::ProgramRanks;
use super::table::Table;
use super::{ChosenAlgorithm, Setting};
use crate::outcome::{CurvePoint, TrainingOutcome};
use crate::training::{Training, train_on};
use clap::Parser;
use hexagram::algorithms::Registry;
use hexagram::{Communicator, Result};

/// Train a small model by several algorithms, in turn on the same ranks, and compare them.
///
/// Under mpirun, srun, torchrun or `hexagram run`, this process is one rank; otherwise it starts the ranks itself.
///
/// By default, the learning rate is that of the suite for the algorithm and the task. Options of the algorithm that are not
/// given have the defaults that `help:NAME` prints, for every task. Second step sizes that the suite has tuned must be given,
/// as in 'slowmo(slow_rate=2)'.
#[derive(Parser, Debug, Clone)]
pub struct CompareOptions {
    /// Algorithms to compare, with options as in 'slowmo(period=12)'; the first one is the reference; `list` prints
    /// the choices, and `help:NAME` the options of one [default: all]
    pub algorithms: Vec<String>,
    /// Trainings by each algorithm, in turn and with different seeds; the table shows the means
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Task, data, ranks and optimizer.
    #[command(flatten)]
    pub setting: Setting,
}

const HEADING: [&str; 10] = [
    "algorithm",
    "",
    "optimizer",
    "γ",
    "loss",
    "accuracy",
    "apart",
    "sent a rank and step",
    "of the first's",
    "ms a step",
];

/// Runs `compare`: as one of a launcher's ranks, or with ranks that it starts. Returns the exit code.
///
/// # Errors
/// The first invalid option, before any rank starts; errors of the ranks.
pub fn compare(registry: &Registry, options: &CompareOptions) -> Result<u8, ProgramError> {
    let first = options.algorithms.first().map_or("", String::as_str);
    if let Some(text) = information(registry, first, options.setting.stepping.optimizer.as_deref()) {
        print(&text?)?;
        return Ok(0);
    }
    let mut rows: Vec<ComparedAlgorithm> = Vec::new();
    for chosen in ChosenAlgorithm::all(registry, &options.algorithms)? {
        let training = options.setting.training(&chosen)?;
        rows.push(ComparedAlgorithm { chosen, training, outcomes: Vec::new() });
    }
    let once = options.setting.ranks("compare", rows.iter().map(|row| &row.training));
    let ranks =
        ProgramRanks { configuration: format!("{}; {} rounds", once.configuration, options.rounds), ..once };
    if let Some(count) = ranks.to_start()? {
        rows.iter().try_for_each(|row| row.training.check_for(count))?;
    }
    let ran = ranks.run(|world| {
        let comm = Communicator::open(world, 0)?;
        let mut table = Table::new(&comm);
        let first = &rows[0].training;
        let place = format!("{} ranks over {}", comm.size(), ranks.transport);
        table.line(&format!("{}, {place}\n\n{}", first.about(), markdown_heading(&HEADING)))?;
        by_turns(&comm, rows.clone(), options.rounds, &mut table)?;
        Ok(table.finish())
    })?;
    Ok(ran.code()?)
}

/// Trains with all algorithms, one after the other, in each round. Prints each row in the last round; ends early if
/// standard output has no reader.
fn by_turns(
    comm: &Communicator,
    mut rows: Vec<ComparedAlgorithm>,
    rounds: u64,
    table: &mut Table<'_>,
) -> Result<()> {
    for round in 0..rounds {
        for at in 0..rows.len() {
            let seed = rows[at].training.seed.wrapping_add(round);
            let training = Training { seed, ..rows[at].training.clone() };
            let outcome = train_on(comm, &training)?;
            rows[at].outcomes.extend(outcome);
            if round + 1 == rounds && !table.line(&rows[at].table_row(&rows[0]))? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Trainings by one algorithm.
#[derive(Clone)]
struct ComparedAlgorithm {
    chosen: ChosenAlgorithm,
    training: Training,
    /// Outcomes of the rounds so far, on rank 0.
    outcomes: Vec<TrainingOutcome>,
}

impl ComparedAlgorithm {
    /// Returns the mean of a figure of the last state.
    fn mean(&self, of: impl Fn(&CurvePoint) -> f64) -> f64 {
        self.outcomes.iter().map(|outcome| of(outcome.last())).sum::<f64>() / self.outcomes.len() as f64
    }

    /// Returns the row of the table; nothing on ranks without outcomes.
    fn table_row(&self, first: &ComparedAlgorithm) -> String {
        if self.outcomes.is_empty() {
            return String::new();
        }
        let steps = self.training.steps as f64;
        let trigram = self.chosen.algorithm.trigram();
        let optimizer = self.training.optimizer.as_ref().map(|optimizer| optimizer.spelled());
        let accuracy = self.mean(|point| point.evaluation.accuracy.unwrap_or(f64::NAN));
        markdown_row(&[
            format!("`{}`", self.chosen.spelling),
            trigram.symbol().to_string(),
            optimizer.unwrap_or_default(),
            self.training.learning_rate.base.to_string(),
            finite(self.mean(|point| point.evaluation.loss), "diverged"),
            percent(accuracy),
            finite(self.mean(|point| point.consensus), "-"),
            bytes((self.mean(CurvePoint::mean_bytes) / steps) as u64),
            percent(self.mean(CurvePoint::mean_bytes) / first.mean(CurvePoint::mean_bytes)),
            format!("{:.3}", 1e3 * self.mean(|point| point.seconds) / steps),
        ])
    }
}

/// Returns a number with four places, or `otherwise` if it is infinite or none.
fn finite(number: f64, otherwise: &str) -> String {
    if number.is_finite() { format!("{number:.4}") } else { otherwise.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Quadratics;
    use crate::training::train;
    use std::sync::Arc;

    #[test]
    fn a_training_that_diverges_says_so_in_its_row() {
        let with = |rate: f64| {
            let chosen = ChosenAlgorithm::named(&Registry::built_in(), "gradient-allreduce").unwrap();
            let task = Arc::new(Quadratics::new(0).unwrap());
            let training = Training { learning_rate: rate.into(), steps: 10, ..Training::of(task) };
            let outcomes = vec![train(&training).unwrap()];
            let row = ComparedAlgorithm { chosen, training, outcomes };
            row.table_row(&row)
        };
        assert!(with(1e10).contains("| diverged | - | - |"), "{}", with(1e10));
        assert!(!with(0.1).contains("diverged"), "{}", with(0.1));
    }
}
