//! The programs of the laboratory, as functions of a registry: train, compare, suite and step. [`main`] gives all of
//! them, by name, to a crate with its own algorithm.
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
//! | file | content |
//! |---|---|
//! | `train.rs`, `compare.rs`, `suite/`, `step/`, `simulate/`, `advise/` | each program, with its options |
//! | `command.rs` | the command line that chooses one of them |
//! | `arguments/` | options of several programs: algorithms, task, data and ranks, optimizer; their checks |
//! | `record.rs` | the figures of a training on disk |
//! | `ranks.rs`, `transports.rs` | the ranks of a program, under any launcher, and their transport |
//! | `console.rs`, `table.rs` | output of the programs |

#[cfg(feature = "programs")]
mod advise;
mod arguments;
#[cfg(feature = "programs")]
mod command;
#[cfg(feature = "programs")]
mod compare;
pub mod console;
pub mod ranks;
#[cfg(feature = "programs")]
mod record;
#[cfg(feature = "programs")]
mod simulate;
#[cfg(feature = "programs")]
mod step;
#[cfg(feature = "programs")]
mod suite;
pub mod table;
#[cfg(feature = "programs")]
mod train;
pub mod transports;

#[cfg(feature = "programs")]
pub use advise::{AdviseOptions, advise};
#[cfg(feature = "programs")]
pub use arguments::Setting;
pub use arguments::optimizer_args::{OptimizerArgs, OverlappedPasses, Stepper};
pub use arguments::{ChosenAlgorithm, folder_name, information, rehearse};
#[cfg(feature = "programs")]
pub use command::main;
#[cfg(feature = "programs")]
pub use compare::{CompareOptions, compare};
#[cfg(feature = "programs")]
pub use simulate::{SimulateOptions, SimulatedJobOptions, simulate};
#[cfg(feature = "programs")]
pub use step::{StepOptions, step};
#[cfg(feature = "programs")]
pub use suite::{SuiteOptions, suite};
#[cfg(feature = "programs")]
pub use train::{TrainOptions, train};

use hexagram::physical::stdout;
use hexagram::physical::world::log_level;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// Prepares a program: prints warnings on standard error, such as the name of a straggler (more with
/// HEXAGRAM_LOG=info and so on), and checks that standard output has a reader.
///
/// # Errors
/// The exit code, after the reason was printed.
pub fn prepare(subcommand: &str) -> Result<(), ExitCode> {
    let program = console::name(subcommand);
    let level = log_level().map_err(|error| console::failure(&program, error))?;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        // A closed output would otherwise cause a panic.
        .log_internal_errors(false)
        .init();
    // Checked here, since the ranks that this program starts could not report it.
    stdout::check().map_err(|error| error.report(&program))
}
