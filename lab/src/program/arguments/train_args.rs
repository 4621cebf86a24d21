//! Setting of a training on the command line: task, data, ranks, steps and optimizer. Errors in it are reported
//! before any rank starts.

use super::optimizer_args::OptimizerArgs;
use super::preflight::rehearse;
use crate::learning_rates::tuned;
use crate::program::ranks::ProgramRanks;
use crate::program::{ChosenAlgorithm, console, transports};
use crate::suite::{Lesson, Suite};
use crate::training::Training;
use clap::Args;
use hexagram::logical::options_text::{Catalogue, NamedOptions, Options, above, no_such};
use hexagram::physical::device::DeviceChoice;
use hexagram::sampler::Partition;
use hexagram::{JoinOptions, Result, TransportKind};
use std::sync::Arc;

/// Options of every program that trains.
#[derive(Args, Debug, Clone)]
pub struct Setting {
    /// Model and data: quadratics, noisy-quadratics, digits or text
    #[arg(long, default_value = "digits")]
    pub task: String,
    /// Division of the data among ranks: equal, 'dirichlet(0.1)', 'shards(2)' or 'quantity(0.5)'
    #[arg(long, default_value = "equal")]
    pub partition: String,
    /// Ranks to start; under a launcher, the number of ranks to expect [default: 4]
    #[arg(short = 'n', long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Transport between the ranks.
    #[arg(help = transports::help())]
    #[arg(long, value_name = "NAME", default_value_t = JoinOptions::default().transport)]
    pub transport: TransportKind,
    /// Device of the replicas: cpu, cuda (one GPU per rank of a host, in turn), cuda:N, or auto
    #[arg(long, value_name = "NAME", default_value_t)]
    pub device: DeviceChoice,
    /// Steps of each rank [default: that of the task, 200 or 300]
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Seed of the initial values, the division of the data and the batches
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Optimizer and learning rate.
    #[command(flatten)]
    pub stepping: OptimizerArgs,
}

impl Setting {
    /// Returns the ranks of a program with a subcommand of this name, which runs these trainings one after the other.
    pub(crate) fn ranks<'a>(
        &self,
        subcommand: &str,
        trainings: impl IntoIterator<Item = &'a Training>,
    ) -> ProgramRanks {
        let trainings: Vec<&Training> = trainings.into_iter().collect();
        let about = trainings.first().map(|training| training.about()).unwrap_or_default();
        let rates: Vec<String> =
            trainings.iter().map(|training| training.learning_rate.to_string()).collect();
        ProgramRanks {
            program: console::name(subcommand),
            ranks: self.ranks,
            otherwise: 4,
            deadline: JoinOptions::default().deadline,
            transport: self.transport,
            // The engine compares the other settings.
            configuration: format!(
                "{subcommand}: {about}, seed {}, learning rate {}",
                self.seed,
                rates.join(", ")
            ),
        }
    }

    /// Returns the training by an algorithm that the options describe.
    ///
    /// # Errors
    /// The first invalid option, in one line.
    pub fn training(&self, chosen: &ChosenAlgorithm) -> Result<Training> {
        let lesson = lesson(&self.task)?;
        let partition = partition(&self.partition)?;
        self.device.check()?;
        let steps = self.steps.unwrap_or(lesson.steps);
        let algorithm = chosen.algorithm.clone();
        let rate = tuned(algorithm.name(), lesson.task.name()).learning_rate;
        let stepper = self.stepping.check(&algorithm, rate)?;
        Ok(Training {
            learning_rate: stepper.rate(steps)?,
            optimizer: Some(stepper.optimizer),
            algorithm,
            partition,
            steps,
            seed: self.seed,
            device: self.device,
            records: steps.clamp(1, 10),
            ..Training::of(Arc::clone(&lesson.task))
        })
    }
}

impl Training {
    /// Refuses a training that does not support this number of ranks.
    pub(crate) fn check_for(&self, ranks: usize) -> Result<()> {
        let training = Training { ranks, ..self.clone() };
        training.check()?;
        training.shares()?;
        rehearse(&training.algorithm, &training.engine()?, ranks)
    }
}

/// Returns the task with this name, and its number of steps in the suite.
fn lesson(name: &str) -> Result<Lesson> {
    let lessons = Suite::whole(Vec::new())?.lessons;
    let found = lessons.iter().find(|lesson| lesson.task.name() == name);
    found.cloned().ok_or_else(|| no_such("task", name, lessons.iter().map(|lesson| lesson.task.name())))
}

/// Partition as it is spelled.
#[derive(Clone)]
struct Division(Partition);

impl NamedOptions for Division {
    fn keyword(&self) -> &'static str {
        match self.0 {
            Partition::Equal => "equal",
            Partition::Dirichlet { .. } => "dirichlet",
            Partition::Shards { .. } => "shards",
            Partition::Quantity { .. } => "quantity",
        }
    }

    fn options(&mut self, options: &mut Options) -> Result<()> {
        match &mut self.0 {
            Partition::Equal => Ok(()),
            Partition::Dirichlet { alpha } | Partition::Quantity { alpha } => options.positional(
                "alpha",
                alpha,
                above(0.0),
                "concentration: the smaller, the more ranks differ",
            ),
            Partition::Shards { per_rank } => {
                options.positional("per_rank", per_rank, 1.., "shards of each rank")
            }
        }
    }
}

/// Returns the partition that a text spells.
fn partition(text: &str) -> Result<Partition> {
    let own = |division: Division| division.0;
    Catalogue::new("partition")
        .with(Division(Partition::Equal), "equal shares, drawn at random", own)
        .with(Division(Partition::Dirichlet { alpha: 0.1 }), "a mix of labels for each rank", own)
        .with(Division(Partition::Shards { per_rank: 2 }), "a few labels for each rank", own)
        .with(Division(Partition::Quantity { alpha: 0.5 }), "different numbers of samples", own)
        .named(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_read_as_they_are_printed() {
        for text in ["equal", "dirichlet(0.3)", "shards(3)", "quantity(2)"] {
            assert_eq!(partition(text).unwrap().to_string(), text);
        }
        for (text, said) in [
            ("dirichle", "did you mean dirichlet?"),
            ("dirichlet(0)", "alpha of dirichlet is 0; choose a number, above 0"),
            ("shards(0)", "per_rank of shards is 0"),
        ] {
            let error = partition(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    /// Ranks that were given other options would wait for each other, or step by other learning rates unnoticed.
    #[test]
    fn ranks_must_agree_on_what_is_trained_and_how() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            setting: Setting,
        }
        let configuration = |options: &str| {
            let words = std::iter::once("train").chain(options.split_whitespace());
            let setting = <Program as clap::Parser>::parse_from(words).setting;
            let chosen =
                ChosenAlgorithm::named(&hexagram::algorithms::Registry::built_in(), "gradient-allreduce")
                    .unwrap();
            setting.ranks("train", [&setting.training(&chosen).unwrap()]).configuration
        };
        let own = configuration("");
        assert_eq!(own, "train: digits, equal data, 300 steps, seed 0, learning rate 1");
        assert_eq!(configuration("--task digits --steps 300 -n 3 --transport tcp"), own);
        for other in [
            "--task text",
            "--partition shards(2)",
            "--steps 299",
            "--seed 1",
            "--lr 0.1",
            "--schedule cosine",
        ] {
            assert_ne!(configuration(other), own, "{other}");
        }
    }

    #[test]
    fn tasks_are_those_of_the_suite() {
        assert_eq!(lesson("text").unwrap().task.name(), "text");
        assert!(lesson("digit").unwrap_err().to_string().contains("did you mean digits?"));
    }
}
