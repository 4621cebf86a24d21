//! The `hexagram` program: starts, measures and checks distributed jobs, and shows which samples each rank gets. Each
//! subcommand has a file of its own.
//!
//! ```sh
//! hexagram run -n 4 -- target/release/examples/train
//! hexagram bench all_reduce --ranks 2 -b 8 -e 64M
//! ```
//!
//! # Features
//! None is on by default.
//!
//! | feature | adds | needs |
//! |---|---|---|
//! | `tls` | control and TCP connections inside TLS | a C compiler |
//! | `mpi` | the `mpi` transport: ranks that mpirun starts and MPI connects | mpicc and libclang |

mod bench;
mod check;
mod ranks;
mod run;
mod sample;
mod say;
mod step;
mod table;
mod transports;

use clap::{Parser, Subcommand};
use hexagram::physical::health::SILENCE_HELP;
use hexagram::physical::stdout;
use hexagram::physical::world::log_level;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

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
    Check(check::Check),
    Sample(sample::Sample),
    Step(step::Step),
}

fn main() -> ExitCode {
    let level = match log_level() {
        Ok(level) => level,
        Err(error) => {
            let _ = io::stderr().write_all(format!("hexagram: {error}\n").as_bytes());
            return ExitCode::FAILURE;
        }
    };
    log(level);
    // Ranks that this program starts could not tell any more.
    if let Err(error) = stdout::check() {
        return error.report("hexagram");
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(shown) => return say::instead(&shown),
    };
    match cli.command {
        Command::Run(run) => run.execute(),
        Command::Bench(bench) => bench.execute(),
        Command::Check(check) => check.execute(),
        Command::Sample(sample) => sample.execute(),
        Command::Step(step) => step.execute(),
    }
}

/// Prints warnings on standard error, such as who keeps everyone waiting; HEXAGRAM_LOG=info and so on print more.
fn log(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        // That nobody reads any more would be reported by a panic.
        .log_internal_errors(false)
        .init();
}
