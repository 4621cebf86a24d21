//! `hexagram step`: how long a training step takes with an algorithm, beside computation that takes as long as yours.
//! Open this file for the options.
//!
//! `profile` is the model and the time its layers take, `compute` what spends that time, `train` the loop.

mod compute;
mod profile;
mod train;

use crate::ranks::{Ran, Ranks};
use crate::say::{self, Failure, PrintError};
use crate::table::Table;
use crate::transports;
use clap::Args;
use hexagram::{Communicator, JoinOptions, Result, TransportKind, World};
use profile::Profile;
use std::path::PathBuf;
use std::process::ExitCode;

const AFTER_HELP: &str = "\
A step uses the CPU time of the profile, layer by layer, forwards and backwards, and hands each layer's gradient over \
when its backward is done; then plain SGD steps on real memory. With `--algorithm none` that is all: the local step. \
What a step takes beyond that is the communication that the computation does not hide.

A profile is a text file with one line a layer: its name, the sizes of its parameters as 1024x1024,1024, and the seconds \
of CPU time of its forward and its backward pass.

The time is the mean over all steps after the warm-up, of the rank that took longest; count whole periods of algorithms \
that do not communicate in every step.

Exit code: 0, or 1 if something failed or the output could not be written, 2 for a wrong call, 141 if nobody reads it.

Example: hexagram step --algorithm bytegrad --ranks 2 --steps 20";

/// Measure training steps with an algorithm, beside computation of a given length.
///
/// Under mpirun, srun, torchrun or `hexagram run` this is one rank; otherwise it starts its ranks itself.
#[derive(Args, Debug, Clone)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Step {
    /// Algorithm by which the ranks communicate, as in 'choco-sgd(codec=top-k(5%), graph=torus)', or `none`;
    /// `train --algorithm list` prints all, and `help:NAME` the options of one
    #[arg(long, default_value = "gradient-allreduce")]
    algorithm: String,

    /// For local-sgd: steps from one mean to the next
    #[arg(long, value_name = "H")]
    period: Option<u64>,

    /// Number of ranks to start; under a launcher, number of ranks that there have to be [default: 2]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,

    #[arg(help = format!("How bytes travel: {}", transports::names()))]
    #[arg(long, value_name = "NAME", default_value_t = JoinOptions::default().transport)]
    transport: TransportKind,

    /// The model, and the time its layers take [default: 8 layers of 1024 × 1024, of 2 ms and 4 ms]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Steps that are measured
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Steps before those
    #[arg(long, value_name = "N", default_value_t = 4)]
    warmup: u32,
}

impl Step {
    /// Measures as one rank, or starts all ranks and waits for them.
    pub(crate) fn execute(self) -> ExitCode {
        match self.start() {
            Ok(0) => ExitCode::SUCCESS,
            Ok(code) => ExitCode::from(code),
            Err(error) => say::failure("step", error),
        }
    }

    fn start(&self) -> Result<u8, Failure> {
        // What is wrong with the call is said once, before any rank starts.
        let profile = Profile::read(self.profile.as_deref())?;
        train::algorithm(self)?;
        let started = Ranks { subcommand: "step", ranks: self.ranks, transport: self.transport };
        match started.run(|world| self.rank(world, &profile))? {
            Ran::Here(printed) => {
                printed.into_iter().collect::<Result<(), PrintError>>()?;
                Ok(0)
            }
            Ran::Elsewhere(code) => Ok(code),
        }
    }

    /// Runs the whole measurement on one rank; rank 0 prints it.
    fn rank(&self, world: &World, profile: &Profile) -> Result<Result<(), PrintError>> {
        let comm = Communicator::open(world, 0)?;
        let measured = train::measure(self, &comm, profile)?;
        let algorithm = train::algorithm(self)?.map_or(train::NONE.to_owned(), |known| known.to_string());
        let line = format!(
            "{} on {} ranks over {}: step {:.2} ms, {:.0} bytes sent a rank and step, mean of {} steps",
            algorithm,
            comm.size(),
            self.transport,
            measured.step_s * 1e3,
            measured.bytes,
            self.steps
        );
        let mut table = Table::new(&comm);
        table.line(&line)?;
        Ok(table.finish())
    }
}
