//! `step`: the time of a training step with an algorithm, during computation that takes as long as yours.
//!
//! `profile` is the model and the time of its layers, `compute` spends that time, `measure` is the loop.

mod compute;
mod measure;
pub(super) mod profile;

use super::arguments::{information, optimizer_args, rehearse, whole_periods};
use super::console::{self, PrintError, ProgramError, print};
use super::ranks::ProgramRanks;
use super::table::Table;
use super::{ChosenAlgorithm, OverlappedPasses, transports};
use clap::Parser;
use compute::Processor;
pub(super) use compute::spent;
use hexagram::algorithms::{Optimizer, Registry};
use hexagram::{Communicator, EngineOptions, JoinOptions, Result, TransportKind};
use profile::Profile;
use std::path::PathBuf;
use std::sync::Arc;

const AFTER_HELP: &str = "\
A step uses the CPU time of the profile, layer by layer, forwards and backwards, and passes the gradient of each layer to \
the algorithm after its backward pass. Then the optimizer steps on real memory. `--algorithm none` measures this local \
step; the additional time of a step is the exposed communication.

A profile is a text file with one line per layer: its name, the sizes of its parameters as 1024x1024,1024, and the seconds \
of CPU time of its forward and its backward pass. With --accelerator, a step waits for that time instead, and leaves the \
processor to communication.

The time is the mean over all steps after the warm-up, of the slowest rank. For algorithms that do not communicate in \
every step, set --steps to whole periods.

Exit code: 0 on success; 1 on a failure, or if the output cannot be written; 2 for invalid options; 141 if the reader \
closed the output.

Example: hexagram step --algorithm bytegrad --ranks 2 --steps 20";

/// Measure training steps with an algorithm, during computation of a given length.
///
/// Under mpirun, srun, torchrun or `hexagram run`, this process is one rank; otherwise it starts the ranks itself.
#[derive(Parser, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub struct StepOptions {
    /// Algorithm of the ranks, as in 'choco-sgd(codec=top-k(5%), graph=torus)', or `none`; `list` prints all, and
    /// `help:NAME` the options of one
    #[arg(long, default_value = "gradient-allreduce")]
    pub algorithm: String,

    /// Optimizer that applies the gradients after the algorithm, with options as in 'sgd(momentum=0.9)'; `list`
    /// prints all, and `help:NAME` the options of one [default: that of the algorithm]
    #[arg(long)]
    pub optimizer: Option<String>,

    /// Computation that communication overlaps: the backward pass, or also the next forward pass, in which each layer
    /// then waits for its own parameters
    #[arg(long, value_enum, default_value_t = OverlappedPasses::Backward)]
    pub overlap: OverlappedPasses,

    /// Number of ranks to start; under a launcher, the number of ranks to expect [default: 2]
    #[arg(short = 'n', long, value_name = "N")]
    pub ranks: Option<usize>,

    /// Transport between the ranks.
    #[arg(help = transports::help())]
    #[arg(long, value_name = "NAME", default_value_t = JoinOptions::default().transport)]
    pub transport: TransportKind,

    /// File with the layers of the model and their times [default: 8 layers of 1024 × 1024, of 2 ms and 4 ms]
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,

    /// Wait for the time of a pass, as for an accelerator, instead of using the processor
    #[arg(long)]
    pub accelerator: bool,

    /// Measured steps [default: 32, or enough for whole periods of the algorithm]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,

    /// Steps before the measured ones
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub warmup: u32,
}

/// Minimum number of measured steps, unless the caller sets it.
const STEPS: u32 = 32;

/// Name that stands for no communication.
const NONE: &str = "none";

/// Runs `step`: as one of a launcher's ranks, or with ranks that it starts. Returns the exit code.
///
/// # Errors
/// The first invalid option, before any rank starts; errors of the ranks.
pub fn step(registry: &Registry, options: &StepOptions) -> Result<u8, ProgramError> {
    if let Some(text) = information(registry, &options.algorithm, options.optimizer.as_deref()) {
        print(&text?)?;
        return Ok(0);
    }
    let measurement = Measurement::new(registry, options)?;
    let program = console::name("step");
    let ranks = ProgramRanks {
        program,
        ranks: options.ranks,
        otherwise: 2,
        deadline: JoinOptions::default().deadline,
        transport: options.transport,
        configuration: measurement.agreed(),
    };
    if let (Some(count), Some(chosen)) = (ranks.to_start()?, &measurement.chosen) {
        rehearse(&chosen.algorithm, &measurement.engine(), count)?;
    }
    let ran = ranks.run(|world| measurement.print(&Communicator::open(world, 0)?))?;
    Ok(ran.code()?)
}

/// Everything to measure, with its options.
pub(super) struct Measurement<'a> {
    options: &'a StepOptions,
    /// Algorithm, `None` for no communication.
    chosen: Option<ChosenAlgorithm>,
    optimizer: Arc<dyn Optimizer>,
    profile: Profile,
    /// Number of steps that are measured.
    steps: u32,
    /// True to communicate within hosts first.
    pub(super) hierarchical: bool,
}

impl<'a> Measurement<'a> {
    /// Returns the values that the engine does not compare between ranks: whether there is an algorithm, and the
    /// steps.
    fn agreed(&self) -> String {
        let options = self.options;
        let algorithm = self.chosen.as_ref().map_or(NONE, |chosen| &chosen.spelling);
        format!("step: {algorithm}, {} steps after {}", self.steps, options.warmup)
    }

    fn new(registry: &Registry, options: &'a StepOptions) -> Result<Self> {
        let profile = Profile::read(options.profile.as_deref())?;
        let chosen = match options.algorithm.as_str() {
            NONE => None,
            text => Some(ChosenAlgorithm::named(registry, text)?),
        };
        Self::of(options, chosen, profile)
    }

    /// Returns the measurement of an algorithm, or of no communication, with a profile. Both replace those in the options.
    ///
    /// # Errors
    /// An invalid optimizer, in one line.
    pub(super) fn of(
        options: &'a StepOptions,
        chosen: Option<ChosenAlgorithm>,
        profile: Profile,
    ) -> Result<Self> {
        let named = chosen.as_ref().and_then(|chosen| chosen.algorithm.optimizers().by_default());
        let optimizer = optimizer_args::named(options.optimizer.as_deref().or(named).unwrap_or("sgd"), None)?;
        let by_default = || chosen.as_ref().map_or(STEPS, |chosen| whole_periods(&chosen.algorithm, STEPS));
        let steps = options.steps.unwrap_or_else(by_default);
        Ok(Measurement { options, chosen, optimizer, profile, steps, hierarchical: false })
    }

    fn processor(&self) -> Processor {
        if self.options.accelerator { Processor::Accelerator } else { Processor::Host }
    }

    fn engine(&self) -> EngineOptions {
        EngineOptions {
            optimizer: Some(Arc::clone(&self.optimizer)),
            overlap: self.options.overlap.overlap(),
            hierarchical: self.hierarchical,
            ..EngineOptions::default()
        }
    }

    /// Runs the whole measurement on one rank; rank 0 prints it.
    fn print(&self, comm: &Communicator) -> Result<std::result::Result<(), PrintError>> {
        let measured = self.run(comm)?;
        let line = format!(
            "{} on {} ranks over {}: step {:.2} ms, {:.0} bytes sent a rank and step, mean of {} steps",
            self.chosen.as_ref().map_or(NONE, |chosen| &chosen.spelling),
            comm.size(),
            self.options.transport,
            measured.step_s * 1e3,
            measured.bytes,
            self.steps
        );
        let mut table = Table::new(comm);
        table.line(&line)?;
        Ok(table.finish())
    }
}
