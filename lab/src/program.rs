//! The laboratory's programs, as functions of a registry: train, compare, suite and step. Use [`main`] to give a crate
//! with an algorithm of its own all of them by name.
//!
//! ```no_run
//! use hexagram::algorithms::Registry;
//! use hexagram::algorithms::slowmo::SlowMo;
//!
//! fn main() -> std::process::ExitCode {
//!     hexagram_lab::main(Registry::built_in().with(SlowMo { period: 12, ..SlowMo::default() }))
//! }
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `train.rs`, `compare.rs`, `suite.rs`, `step.rs`, `simulate.rs`, `advise.rs` | each program, with its options |
//! | `setting.rs`, `stepping.rs` | options of several: task, data and ranks; optimizer and learning rate |
//! | `names.rs` | algorithms as they are typed, what is printed of them, and the names of their runs' folders |
//! | `record.rs` | the figures of a training on disk |
//! | `rehearsal.rs` | what is found before ranks start |
//! | `ranks.rs`, `transports.rs` | the ranks of a program, under any launcher, and what carries their messages |
//! | `say.rs`, `table.rs` | what programs print |

mod advise;
mod compare;
mod names;
pub mod ranks;
mod record;
mod rehearsal;
pub mod say;
mod setting;
mod simulate;
mod step;
mod stepping;
mod suite;
pub mod table;
mod train;
pub mod transports;

pub use advise::{AdviseOptions, advise};
pub use compare::{CompareOptions, compare};
pub use names::{Chosen, folder_name, information};
pub use rehearsal::rehearse;
pub use setting::Setting;
pub use simulate::{JobOptions, SimulateOptions, simulate};
pub use step::{Passes, StepOptions, step};
pub use stepping::{Stepper, Stepping};
pub use suite::{SuiteOptions, suite};
pub use train::{TrainOptions, train};

use clap::{Parser, Subcommand};
use hexagram::algorithms::Registry;
use hexagram::physical::health::SILENCE_HELP;
use hexagram::physical::stdout;
use hexagram::physical::world::log_level;
use say::Failure;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// Trains, compares and measures the algorithms of this program.
#[derive(Parser)]
#[command(arg_required_else_help = true, after_help = format!("{AFTER_HELP}\n\n{SILENCE_HELP}"))]
struct Program {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
`list` prints the algorithms, and `help:NAME` the options of an algorithm, a codec or a graph; `train --optimizer list` and \
`train --optimizer help:NAME` do so for the optimizers.

Exit code: 0, or 1 if something failed or the output could not be written, 2 for a wrong call, 141 if nobody reads the \
output any more.";

#[derive(Subcommand)]
enum Command {
    Train(TrainOptions),
    Compare(CompareOptions),
    Suite(SuiteOptions),
    Step(StepOptions),
    Simulate(Box<SimulateOptions>),
    Advise(Box<AdviseOptions>),
}

/// Runs the program that the command line asks for, with the algorithms of a registry; returns what to exit with.
pub fn main(registry: Registry) -> ExitCode {
    if let Err(code) = prepare("") {
        return code;
    }
    let asked = std::env::args().nth(1).and_then(|word| information(&registry, &word, None));
    if let Some(text) = asked {
        return say::ended(&say::name(""), printed(text));
    }
    let program = match Program::try_parse() {
        Ok(program) => program,
        Err(shown) => return say::instead(&say::name(""), &shown),
    };
    match program.command {
        Command::Train(options) => say::ended(&say::name("train"), train(&registry, &options)),
        Command::Compare(options) => say::ended(&say::name("compare"), compare(&registry, &options)),
        Command::Suite(options) => say::ended(&say::name("suite"), suite(&registry, &options).map(|()| 0)),
        Command::Step(options) => say::ended(&say::name("step"), step(&registry, &options)),
        Command::Simulate(options) => say::ended(&say::name("simulate"), simulate(&registry, &options)),
        Command::Advise(options) => say::ended(&say::name("advise"), advise(&registry, &options)),
    }
}

fn printed(text: hexagram::Result<String>) -> Result<u8, Failure> {
    say::print(&text?)?;
    Ok(0)
}

/// Prepares a program: prints warnings on standard error, such as who keeps everyone waiting (HEXAGRAM_LOG=info and so
/// on print more), and makes sure that somebody can see what it prints.
///
/// # Errors
/// What to exit with, after the reason was said.
pub fn prepare(subcommand: &str) -> Result<(), ExitCode> {
    let program = say::name(subcommand);
    let level = log_level().map_err(|error| say::failure(&program, error))?;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        // That nobody reads any more would be reported by a panic.
        .log_internal_errors(false)
        .init();
    // Ranks that this program starts could not tell any more.
    stdout::check().map_err(|error| error.report(&program))
}
