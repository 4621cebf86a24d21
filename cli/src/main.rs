//! The `hexagram` program: starts, measures and checks distributed jobs. Each subcommand has a file of its own.

mod bench;
mod run;
mod say;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Distributed SGD: starts, measures and checks jobs.
#[derive(Parser)]
#[command(name = "hexagram", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Run),
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => run.execute(),
        Command::Bench(bench) => bench.execute(),
    }
}
