//! The `hexagram` program: starts, measures and checks distributed jobs, and shows the samples of each rank. Each
//! subcommand has its own file. The program is a library, so that the Python package installs the same one.
//!
//! ```sh
//! hexagram run -n 4 -- target/release/examples/train
//! hexagram bench all_reduce --ranks 2 -b 8 -e 64M
//! ```
//!
//! ```
//! use std::process::ExitCode;
//!
//! assert_eq!(hexagram_cli::run(["hexagram", "--version"]), ExitCode::SUCCESS);
//! ```
//!
//! # Features
//! No feature is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `tls` | control and TCP connections inside TLS | a C compiler |
//! | `mpi` | the `mpi` transport: ranks that mpirun starts and MPI connects | mpicc and libclang |
//! | `cuda` | the device `cuda`: memory and arithmetic of NVIDIA GPUs | to build, nothing; to run, the driver |

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod bench;
mod check;
mod run;
mod sample;

use clap::{Parser, Subcommand};
use hexagram::algorithms::Registry;
use hexagram::physical::health::SILENCE_HELP;
use hexagram_lab::program::{
    AdviseOptions, SimulateOptions, StepOptions, advise, console, prepare, ranks, simulate, step, table,
    transports,
};
use std::ffi::OsString;
use std::process::ExitCode;

/// Distributed SGD: starts, measures and checks jobs.
#[derive(Parser)]
#[command(name = "hexagram", version, arg_required_else_help = true, after_help = SILENCE_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Bench(bench::Bench),
    Check(check::CheckOptions),
    Sample(sample::Sample),
    Step(StepOptions),
    Simulate(Box<SimulateOptions>),
    Advise(Box<AdviseOptions>),
}

/// Runs the program with these arguments, its name first, and returns the code with which to exit. Call it once, and exit after
/// it returns: it changes the state of the process, such as its limits and signals.
pub fn run(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    if let Err(code) = prepare("") {
        return code;
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(shown) => return console::instead("hexagram", &shown),
    };
    match cli.command {
        Command::Run(run) => run.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::Check(check) => check.execute(),
        Command::Sample(sample) => sample.execute(),
        Command::Simulate(options) => {
            console::ended("hexagram simulate", simulate(&Registry::built_in(), &options))
        }
        Command::Advise(options) => {
            console::ended("hexagram advise", advise(&Registry::built_in(), &options))
        }
        Command::Step(options) => console::ended("hexagram step", step(&Registry::built_in(), &options)),
    }
}
