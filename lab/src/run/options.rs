//! Options of the command line, checked before anything starts, so that bad input is one line from one process.

use crate::data::Data;
use crate::defaults;
use crate::device;
use crate::model::Model;
use crate::progress::EXIT_CODES;
use clap::{Parser, ValueEnum};
use hexagram::algorithms::trace::check_writable;
use hexagram::algorithms::{AnyAlgorithm, EngineOptions, LearningRate, Registry};
use hexagram::physical::device::DeviceChoice;
use hexagram::physical::health::SILENCE_HELP;
use hexagram::{Error, TransportKind};
use hexagram_lab::program::{Chosen, Passes, Stepper, Stepping, folder_name, rehearse};
use std::path::PathBuf;
use std::time::Duration;

/// More processes than this on one machine is a slip of the finger.
pub const MAX_RANKS: usize = 64;

/// Train a small convolutional net on handwritten digits, or ResNet-50 on CIFAR-10, on several ranks.
///
/// Under mpirun, torchrun or `hexagram run` it is one rank; otherwise it starts its ranks itself.
#[derive(Parser, Debug, Clone)]
#[command(name = "train", version, after_help = format!("{EXIT_CODES}\n\n{SILENCE_HELP}"))]
pub struct Options {
    /// Ranks to start when no launcher has started them [default: 4]
    #[arg(short = 'n', long)]
    pub ranks: Option<usize>,
    /// Algorithm, by which ranks communicate, with options as in 'choco-sgd(codec=top-k(5%), graph=torus)'; `list`
    /// prints the choices, and `help:NAME` the options of one
    #[arg(long, default_value = "gradient-allreduce")]
    pub algorithm: String,
    /// Transport: mixed (shm within a host, tcp across), shm, tcp, or thread (all ranks in one process)
    #[arg(long, default_value = "mixed")]
    pub transport: String,
    /// Device that trains: cpu, cuda (a GPU for each rank of a host in turn), cuda:N, or auto, which is cpu where there
    /// is no GPU or this program was built without CUDA
    #[arg(long, value_name = "NAME", default_value_t)]
    pub device: DeviceChoice,
    /// Model: small (for digits), resnet14 or resnet50, which get colour images shifted and mirrored
    #[arg(long, value_enum, hide_possible_values = true, default_value_t = Model::Small)]
    pub model: Model,
    /// Passes over the training data
    #[arg(long, default_value_t = 40)]
    pub epochs: u64,
    /// Samples per rank and step
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Computation that communication runs beside: the backward pass, or also the next forward pass, in which each part
    /// of the model then waits for its own parameters
    #[arg(long, value_enum, default_value_t = Passes::Backward)]
    pub overlap: Passes,
    /// Optimizer and learning rate.
    #[command(flatten)]
    pub stepping: Stepping,
    /// Seed of the initial parameters and the order of samples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Type of the parameters
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,
    /// A folder with MNIST (IDX files) or CIFAR-10 (binary version), or a file of digits: 64 pixels 0..16 and a label
    /// per line, .csv or .csv.gz
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Threads that load images ahead of each rank; 0 loads between steps, which is enough for the digits
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
    /// End with one line of JSON on standard output, and print nothing else there
    #[arg(long)]
    pub json: bool,
    /// Folder for metrics.jsonl and plot.svg [default: a new folder in runs/]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Save everything that the training depends on in this folder, now and then and at the end. A save that fails is
    /// said on standard error and tried again at the next; if the last one fails, the exit code is 1
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// Steps from one checkpoint to the next
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "checkpoint")]
    pub every: u64,
    /// Go on from the newest checkpoint, if there is one; refused, with each difference, if it was made with other
    /// options or data than those given now
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Go on all the same, with another --lr, --schedule, --batch, --seed or --data; where that changes the order of
    /// samples, the epoch that was under way begins anew
    #[arg(long, requires = "resume")]
    pub change: bool,
    /// Write what all ranks did and when, for ui.perfetto.dev, and say which rank was the slowest
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Seconds to wait for all ranks to join
    #[arg(long, default_value_t = 60)]
    pub join_deadline: u64,
}

/// Type of the parameters, gradients and arithmetic.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Precision {
    F32,
    F64,
}

/// Options that make sense, with what they name.
pub struct Checked {
    /// Options as they were given.
    pub options: Options,
    /// Its algorithm.
    pub algorithm: AnyAlgorithm,
    /// Its optimizer and learning rate.
    pub stepper: Stepper,
    /// Its transport.
    pub transport: TransportKind,
    /// Its data.
    pub data: Data,
}

impl Checked {
    /// Makes sure that each of `ranks` ranks has samples for at least one step.
    ///
    /// # Errors
    /// One line that says how many there are.
    pub fn check_share(&self, ranks: usize) -> Result<(), Error> {
        let batch = self.options.batch;
        let have = self.data.train.len();
        if batch <= have / ranks {
            return Ok(());
        }
        let what = format!("--batch {batch} on {ranks} ranks exceeds the {have} training samples");
        Err(Error::usage(what, "use a smaller batch or fewer ranks"))
    }

    /// Refuses what so many ranks cannot do, before any of them starts.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn check_for(&self, ranks: usize) -> Result<(), Error> {
        self.check_share(ranks)?;
        rehearse(&self.algorithm, &self.engine(), ranks)
    }

    /// Returns the engine's options.
    pub fn engine(&self) -> EngineOptions {
        EngineOptions { overlap: self.options.overlap.overlap(), ..self.stepper.engine() }
    }

    /// Returns the learning rate of every step of a training, whose epochs have so many each.
    ///
    /// # Errors
    /// One line that names option, value and range, if the schedule does not fit so few steps.
    pub fn schedule(&self, steps: u64) -> Result<LearningRate, Error> {
        self.stepper.rate(steps.saturating_mul(self.options.epochs))
    }

    /// Returns what all ranks must have been given alike, in words, beside what the training is made with.
    pub fn agreement(&self) -> String {
        let flag = |given: bool, name: &'static str| if given { name } else { "" };
        let trace = flag(self.options.trace.is_some(), " --trace");
        let checkpoint = match self.options.checkpoint {
            Some(_) => format!(
                " --checkpoint --every {}{}{}",
                self.options.every,
                flag(self.options.resume, " --resume"),
                flag(self.options.change, " --change")
            ),
            None => String::new(),
        };
        format!("--epochs {}{trace}{checkpoint}", self.options.epochs)
    }
}

impl Options {
    /// Finds what the options name, and refuses what cannot be done.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn check(mut self) -> Result<Checked, Box<dyn std::error::Error>> {
        // What is printed and saved is its short spelling, however it was typed.
        let Chosen { algorithm, spelling } = Chosen::named(&Registry::built_in(), &self.algorithm)?;
        self.algorithm = spelling;
        let transport = self.transport.parse()?;
        let ranks = self.ranks();
        if !(1..=MAX_RANKS).contains(&ranks) {
            let remedy = format!("this example starts 1 to {MAX_RANKS} ranks on one machine");
            return Err(Error::usage(format!("--ranks {ranks} cannot be started"), remedy).into());
        }
        if self.batch == 0 || self.epochs == 0 {
            return Err(
                Error::usage("--batch and --epochs count from 1", "leave them out for the defaults").into()
            );
        }
        self.model.check_batch(self.batch)?;
        device::check(self.device)?;
        if self.every == 0 {
            return Err(Error::usage("--every counts from 1", "leave it out for the default").into());
        }
        if let Some(trace) = &self.trace {
            check_writable(trace)?;
        }
        let stepper = self.stepping.check(&algorithm, defaults::of(algorithm.name()).learning_rate)?;
        let data = match &self.data {
            Some(path) => Data::read(path)?,
            None => Data::embedded()?,
        };
        let checked = Checked { options: self, algorithm, stepper, transport, data };
        checked.schedule(checked.data.train.len() as u64)?;
        Ok(checked)
    }

    /// Returns the number of ranks to start if no launcher has.
    pub fn ranks(&self) -> usize {
        self.ranks.unwrap_or(4)
    }

    /// Returns the longest time to wait for all ranks.
    pub fn join_deadline(&self) -> Duration {
        Duration::from_secs(self.join_deadline)
    }

    /// Returns the folder of the run's files.
    pub fn directory(&self, ranks: usize) -> PathBuf {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let algorithm = folder_name(&self.algorithm);
        let name = || format!("runs/{algorithm}-{ranks}-{}-{since}-{}", self.transport, std::process::id());
        self.out.clone().unwrap_or_else(|| name().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(arguments: &[&str]) -> Result<Checked, String> {
        let options = Options::try_parse_from([&["train"], arguments].concat()).map_err(|e| e.to_string())?;
        options.check().map_err(|error| error.to_string())
    }

    fn refused(arguments: &[&str], what: &str) {
        match checked(arguments) {
            Err(text) => assert!(text.contains(what), "{text}"),
            Ok(_) => panic!("{arguments:?} were accepted"),
        }
    }

    #[test]
    fn defaults_make_sense() {
        assert_eq!(checked(&[]).unwrap().options.ranks(), 4);
    }

    #[test]
    fn bad_input_is_named() {
        refused(&["--ranks", "0"], "--ranks 0");
        refused(&["--ranks", "1000000"], "1 to 64 ranks");
        refused(&["--algorithm", "magic"], "gradient-allreduce");
        refused(&["--transport", "pigeon"], "use one of mixed, shm, tcp, thread");
        refused(&["--batch", "0"], "--batch");
        refused(&["--model", "resnet"], "resnet50");
        refused(&["--model", "resnet50", "--batch", "1"], "--batch 1 has no variance");
        refused(&["--device", "gpu"], "use cpu, cuda, cuda:N or auto");
        #[cfg(not(feature = "cuda"))]
        refused(&["--device", "cuda:1"], "--device cuda:1: this program was built without CUDA");
        refused(&["--lr", "NaN"], "--lr NaN");
        refused(&["--data", "/does/not/exist.csv"], "/does/not/exist.csv");
        refused(&["--ranks", "x"], "--ranks");
        refused(&["--optimizer", "adamv"], "adamw");
        refused(
            &["--optimizer", "adamw(beta1=1)"],
            "beta1 of adamw is 1; choose a number, 0 or more, below 1",
        );
        refused(&["--weight-decay=-1"], "weight_decay of sgd is -1; choose a number, 0 or more");
        refused(&["--optimizer", "sgd(weight-decay=1)", "--weight-decay", "1"], "2 times");
        refused(&["--schedule", "cosin"], "cosine");
        refused(&["--schedule", "cosine(end=-1)"], "end of cosine is -1; choose a number, 0 or more");
        refused(&["--schedule", "cosine(base=2)"], "give it as --lr");
    }

    #[test]
    fn an_optimizer_brings_its_learning_rate_and_a_schedule_the_length_of_the_training() {
        let plain = checked(&[]).unwrap();
        assert_eq!(plain.stepper.optimizer.spelled(), "sgd");
        assert_eq!(plain.schedule(22).unwrap(), 0.15.into());
        let given =
            ["--optimizer", "adamw(beta2=0.95)", "--weight-decay", "0.1", "--schedule", "cosine(warmup=5)"];
        let checked = checked(&[&given[..], &["--epochs", "3"]].concat()).unwrap();
        assert_eq!(checked.stepper.optimizer.spelled(), "adamw(beta2=0.95, weight_decay=0.1)");
        let rate = checked.schedule(22).unwrap();
        assert_eq!(rate.to_string(), "cosine(base=0.002, warmup=5, start=0.01, steps=66, end=0)");
        assert!(checked.schedule(1).is_err());
    }

    #[test]
    fn every_rank_needs_a_batch() {
        let checked = checked(&["--batch", "359"]).unwrap();
        assert!(checked.check_share(4).is_ok());
        let text = checked.check_share(5).unwrap_err().to_string();
        assert!(text.contains("--batch 359 on 5 ranks exceeds the 1437"), "{text}");
    }

    #[test]
    fn what_ranks_cannot_do_is_said_before_they_start() {
        for (arguments, said) in [
            (["--algorithm", "qadam", "--optimizer", "adam"], "adam does not fit qadam, since"),
            (["--algorithm", "d-psgd(graph=hypercube)", "--ranks", "3"], "3 ranks make no hypercube"),
        ] {
            let checked = checked(&arguments).unwrap();
            let text = checked.check_for(checked.options.ranks()).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn an_algorithm_is_spelled_short_and_has_the_defaults_of_its_name() {
        let checked = checked(&["--algorithm", "qadam( warmup = 7, block=2048 )"]).unwrap();
        assert_eq!(checked.options.algorithm, "qadam(warmup=7)");
        assert_eq!(checked.stepper.learning_rate, defaults::of("qadam").learning_rate);
        let folder = checked.options.directory(2);
        assert!(folder.to_str().unwrap().starts_with("runs/qadam-warmup-7-2-mixed-"), "{folder:?}");
        refused(
            &["--algorithm", "qadam(warmup=0)"],
            "warmup of qadam is 0; choose a whole number, 1 or more",
        );
    }
}
