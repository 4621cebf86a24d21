//! Options that training programs share, checked before any rank starts, so that bad input is one line from one process.

use super::memory::RunMemory;
use super::share::distributed;
use super::{Costs, RunError};
use crate::program::ranks::{ProgramRanks, Ran, start_of_program};
use crate::program::{
    ChosenAlgorithm, OptimizerArgs, OverlappedPasses, Stepper, console, folder_name, rehearse,
};
use crate::tuned;
use clap::Args;
use hexagram::algorithms::trace::check_writable;
use hexagram::algorithms::{AnyAlgorithm, EngineOptions, LearningRate, Registry};
use hexagram::physical::bootstrap::variable;
use hexagram::physical::device::DeviceChoice;
use hexagram::physical::launcher::MEMBERSHIP;
use hexagram::physical::ranks::as_member;
use hexagram::physical::world::restarts;
use hexagram::sampler::loader::LoaderOptions;
use hexagram::{Error, JoinOptions, Result, TransportKind, World};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// More processes than this on one machine are likely a typing error.
const MAX_RANKS: usize = 64;

/// Options of every training program.
#[derive(Args, Debug, Clone)]
pub struct RunOptions {
    /// Ranks to start if no launcher has started them [default: 4]
    #[arg(short = 'n', long)]
    pub ranks: Option<usize>,
    /// Algorithm of the ranks, with options as in 'choco-sgd(codec=top-k(5%), graph=torus)'; `list` prints the
    /// choices, and `help:NAME` the options of one
    #[arg(long, default_value = "gradient-allreduce")]
    pub algorithm: String,
    /// Transport: mixed (shm within a host, tcp across), shm, tcp, mpi (ranks that mpirun starts, in a build with the
    /// feature `mpi`), or thread (all ranks in one process). GPU memory may bypass it, by NCCL or by direct access:
    /// HEXAGRAM_DEVICE_PATH
    #[arg(long, value_name = "NAME", env = "HEXAGRAM_TRANSPORT", default_value_t = JoinOptions::default().transport)]
    pub transport: TransportKind,
    /// Device of the replicas: cpu, cuda (one GPU per rank of a host, in turn), cuda:N, or auto, which is cpu without
    /// a GPU or in a build without CUDA
    #[arg(long, value_name = "NAME", default_value_t)]
    pub device: DeviceChoice,
    /// Passes over the training data
    #[arg(long, default_value_t = 40)]
    pub epochs: u64,
    /// Samples per rank and step
    #[arg(long, default_value_t = 16)]
    pub batch: usize,
    /// Computation that communication overlaps: the backward pass, or also the next forward pass, in which each part
    /// of the model then waits for its own parameters
    #[arg(long, value_enum, default_value_t = OverlappedPasses::Backward)]
    pub overlap: OverlappedPasses,
    /// Optimizer and learning rate.
    #[command(flatten)]
    pub stepping: OptimizerArgs,
    /// Seed of the initial parameters and the order of samples
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Print only one line of JSON on standard output, at the end
    #[arg(long)]
    pub json: bool,
    /// Folder for metrics.jsonl and plot.svg [default: a new folder in runs/]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Save the whole state of the training in this folder, from time to time and at the end. A failed save is
    /// reported on standard error and tried again at the next one; if the last one fails, the exit code is 1. If the
    /// launcher has restarted the job, the training resumes from the newest checkpoint
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// Steps from one checkpoint to the next
    #[arg(long, value_name = "STEPS", default_value_t = 100, requires = "checkpoint")]
    pub every: u64,
    /// Copies of each checkpoint file on other hosts, if the hosts do not share the folder: that many hosts can be lost
    /// with their disks
    #[arg(long, value_name = "HOSTS", default_value_t = 0, requires = "checkpoint")]
    pub checkpoint_peers: usize,
    /// Continue from the newest checkpoint, if any. If its options or data differ from the current ones, each
    /// difference is reported, and the run is refused
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Continue despite a different number of ranks, or a different --lr, --schedule, --batch, --seed, --data or --sampler.
    /// A different number of ranks keeps the state of the algorithm that its theory permits; after a restart by the launcher, it
    /// needs no option. If the order of samples changes, the current epoch begins anew
    #[arg(long, requires = "resume")]
    pub change: bool,
    /// True if the launcher has restarted the job.
    #[arg(skip)]
    pub is_restarted: bool,
    /// Write the timeline of all ranks for ui.perfetto.dev, and report the slowest rank
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Seconds to wait for all ranks to join
    #[arg(long, default_value_t = 60)]
    pub join_deadline: u64,
}

/// Model and data of a training program, as its reports and checkpoints name them.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Name of the program, with which its messages begin.
    pub program: &'static str,
    /// Name of the model.
    pub model: String,
    /// Column of the table of [learning rates](crate::tuned).
    pub rates: &'static str,
    /// Type of the parameters.
    pub dtype: &'static str,
    /// Number of training samples.
    pub samples: usize,
    /// Hash of the training samples.
    pub digest: u64,
    /// Cost of each training sample; `None` if all cost the same.
    pub costs: Option<Costs>,
}

/// Training whose options have been checked.
#[derive(Debug, Clone)]
pub struct CheckedRun {
    /// Options as given, with the algorithm in its short spelling.
    pub options: RunOptions,
    /// Algorithm.
    pub algorithm: AnyAlgorithm,
    /// Optimizer and learning rate.
    pub stepper: Stepper,
    /// Model and data.
    pub subject: Subject,
    /// The last steps of this rank, if the members of the job may change.
    memory: Arc<Mutex<RunMemory>>,
}

impl CheckedRun {
    /// Looks up the names in the options, and refuses invalid ones.
    ///
    /// # Errors
    /// The reason and a remedy, in one line.
    pub fn check(mut options: RunOptions, subject: Subject) -> Result<Self> {
        // Printed and saved in its short spelling, however it was typed.
        let ChosenAlgorithm { algorithm, spelling } =
            ChosenAlgorithm::named(&Registry::built_in(), &options.algorithm)?;
        options.algorithm = spelling;
        let ranks = options.ranks();
        if !(1..=MAX_RANKS).contains(&ranks) {
            let remedy = format!("this example starts 1 to {MAX_RANKS} ranks on one machine");
            return Err(Error::usage(format!("--ranks {ranks} cannot be started"), remedy));
        }
        if options.batch == 0 || options.epochs == 0 {
            return Err(Error::usage(
                "--batch or --epochs is 0",
                "use at least 1, or omit them for the defaults",
            ));
        }
        options.device.check()?;
        if options.every == 0 {
            return Err(Error::usage("--every is 0", "use at least 1, or omit it for the default"));
        }
        // New members of an elastic job continue with the others.
        options.is_restarted = restarts()? > 0 && variable(MEMBERSHIP).is_none();
        options.resume |= options.checkpoint.is_some() && options.is_restarted;
        if let Some(trace) = &options.trace {
            check_writable(trace)?;
        }
        let rate = tuned(algorithm.name(), subject.rates).learning_rate;
        let stepper = options.stepping.check(&algorithm, rate)?;
        let run = CheckedRun { options, algorithm, stepper, subject, memory: Arc::default() };
        run.schedule(run.subject.samples as u64)?;
        Ok(run)
    }

    /// Runs `rank` as the rank of this process, or starts all ranks and waits for them. The exit code of a rank is
    /// that of its process.
    ///
    /// # Errors
    /// Those of `rank`, or of the start.
    pub fn start(
        &self,
        rank: impl Fn(&World) -> Result<ExitCode, RunError> + Sync,
    ) -> Result<ExitCode, RunError> {
        start_of_program();
        let options = &self.options;
        let ranks = ProgramRanks {
            program: self.subject.program.to_owned(),
            ranks: options.ranks,
            otherwise: options.ranks(),
            transport: options.transport,
            deadline: Duration::from_secs(options.join_deadline),
            configuration: self.agreement(),
        };
        if let Some(count) = ranks.to_start()? {
            self.check_share(count)?;
            rehearse(&self.algorithm, &self.engine(), count)?;
            // Checked here, so that an invalid folder gives one message, not one per rank.
            options.out.as_deref().map_or(Ok(()), super::metrics::prepare)?;
        }
        let one = |world: World| -> Result<ExitCode, String> {
            let number = Cell::new(world.rank());
            let ended: Result<ExitCode, RunError> = as_member(world, |world| {
                number.set(world.rank());
                self.check_share(world.size())?;
                rank(world)
            });
            ended.map_err(|error| format!("rank {}: {error}", number.get()))
        };
        Ok(match ranks.run_with(one)? {
            Ran::Here(ended) if ended.len() == 1 => ended.into_iter().collect::<Result<Vec<_>, _>>()?[0],
            Ran::Here(ended) => self.code(ended),
            Ran::Elsewhere(code) => ExitCode::from(code),
        })
    }

    /// Prints the errors of ranks that ran as threads, and returns the first code of a failure.
    fn code(&self, ended: Vec<Result<ExitCode, String>>) -> ExitCode {
        let failed = |error: String| {
            console::line(self.subject.program, error);
            ExitCode::FAILURE
        };
        let mut codes = ended.into_iter().map(|code| code.unwrap_or_else(failed));
        codes.find(|code| *code != ExitCode::SUCCESS).unwrap_or_default()
    }

    /// Returns a loader's options: this rank's share of the samples, in a new order in each epoch.
    ///
    /// # Errors
    /// Those of the sampler.
    pub fn share(&self, world: &World) -> Result<LoaderOptions, RunError> {
        let seed = self.options.seed;
        let rank = (world.rank(), world.size());
        let order = (self.options.batch, seed);
        let batches = match &self.subject.costs {
            None => distributed(self.subject.samples, rank, order)?,
            Some(costs) => costs.batches(rank, order)?,
        };
        Ok(LoaderOptions { batch_sampler: Some(batches), seed, ..LoaderOptions::default() })
    }

    /// Returns the engine options.
    pub fn engine(&self) -> EngineOptions {
        EngineOptions { overlap: self.options.overlap.overlap(), ..self.stepper.engine() }
    }

    /// Returns the learning rate of every step of a training with this number of steps an epoch.
    ///
    /// # Errors
    /// An error that names option, value and range, if the schedule does not fit that number of steps.
    pub fn schedule(&self, steps: u64) -> Result<LearningRate> {
        self.stepper.rate(steps.saturating_mul(self.options.epochs))
    }

    /// Checks that each of `ranks` ranks has samples for at least one step.
    fn check_share(&self, ranks: usize) -> Result<()> {
        let batch = self.options.batch;
        let samples = self.subject.samples;
        if batch <= samples / ranks {
            return Ok(());
        }
        let what = format!("--batch {batch} on {ranks} ranks exceeds the {samples} training samples");
        Err(Error::usage(what, "use a smaller batch or fewer ranks"))
    }

    /// Returns the last steps of this rank.
    pub(super) fn memory(&self) -> MutexGuard<'_, RunMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the options that must be the same on all ranks.
    fn agreement(&self) -> String {
        let CheckedRun { options, stepper, subject, .. } = self;
        let flag = |given: bool, name: &'static str| if given { name } else { "" };
        let checkpoint = match options.checkpoint {
            Some(_) => {
                let RunOptions { every, checkpoint_peers: peers, .. } = options;
                format!(" --checkpoint --every {every} --checkpoint-peers {peers}")
            }
            None => String::new(),
        };
        let sampler = subject.costs.as_ref().map(|costs| format!(" --sampler {}", costs.sampler));
        let sampler = sampler.unwrap_or_default();
        format!(
            "{} --algorithm {} --model {} --optimizer {} --lr {} --schedule {} --dtype {} --batch {} --seed {} \
             --data {:016x} --epochs {}{sampler}{}{checkpoint}{}{}",
            subject.program,
            options.algorithm,
            subject.model,
            stepper.optimizer.spelled(),
            stepper.learning_rate,
            options.stepping.schedule,
            subject.dtype,
            options.batch,
            options.seed,
            subject.digest,
            options.epochs,
            flag(options.trace.is_some(), " --trace"),
            flag(options.resume, " --resume"),
            flag(options.change, " --change"),
        )
    }
}

impl RunOptions {
    /// Returns the number of ranks to start if no launcher has.
    pub(super) fn ranks(&self) -> usize {
        self.ranks.unwrap_or(4)
    }

    /// Returns the folder for the run's files.
    pub(super) fn directory(&self, ranks: usize) -> PathBuf {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let algorithm = folder_name(&self.algorithm);
        let name = || format!("runs/{algorithm}-{ranks}-{}-{since}-{}", self.transport, std::process::id());
        self.out.clone().unwrap_or_else(|| name().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Options {
        #[command(flatten)]
        common: RunOptions,
    }

    fn checked(arguments: &[&str]) -> Result<CheckedRun, String> {
        let options = <Options as clap::Parser>::try_parse_from([&["train"], arguments].concat());
        let subject = Subject {
            program: "train",
            model: "net".to_owned(),
            rates: "digits",
            dtype: "f32",
            samples: 1437,
            digest: 0,
            costs: None,
        };
        let run = options.map_err(|error| error.to_string())?;
        CheckedRun::check(run.common, subject).map_err(|error| error.to_string())
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
        refused(&["--transport", "pigeon"], "use one of mixed, ");
        refused(&["--batch", "0"], "--batch");
        refused(&["--device", "gpu"], "use cpu, cuda, cuda:N or auto");
        refused(&["--lr", "NaN"], "--lr NaN");
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
        refused(&["--schedule", "cosine(base=2)"], "use --lr for the base");
    }

    #[test]
    fn an_optimizer_brings_its_learning_rate_and_a_schedule_the_length_of_the_training() {
        let plain = checked(&[]).unwrap();
        assert_eq!(plain.stepper.optimizer.spelled(), "sgd");
        assert_eq!(plain.schedule(22).unwrap(), 1.0.into());
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
            (["--algorithm", "d-psgd(graph=hypercube)", "--ranks", "3"], "3 ranks do not form a hypercube"),
        ] {
            let checked = checked(&arguments).unwrap();
            let text = rehearse(&checked.algorithm, &checked.engine(), checked.options.ranks())
                .unwrap_err()
                .to_string();
            assert!(text.contains(said) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn an_algorithm_is_spelled_short_and_has_the_defaults_of_its_name() {
        let checked = checked(&["--algorithm", "qadam( warmup = 7, block=2048 )"]).unwrap();
        assert_eq!(checked.options.algorithm, "qadam(warmup=7)");
        assert_eq!(checked.stepper.learning_rate, tuned("qadam", "digits").learning_rate);
        let folder = checked.options.directory(2);
        assert!(folder.to_str().unwrap().starts_with("runs/qadam-warmup-7-2-mixed-"), "{folder:?}");
        refused(
            &["--algorithm", "qadam(warmup=0)"],
            "warmup of qadam is 0; choose a whole number, 1 or more",
        );
    }
}
