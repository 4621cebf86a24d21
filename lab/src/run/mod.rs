//! Parts of a training program around its loop: options, figures on disk, a picture, progress on the terminal and
//! checkpoints. Use them for a program whose source shows only the training, such as `examples/train.rs`.
//!
//! | file | content |
//! |---|---|
//! | `options.rs` | the options of the command line, checked before any rank starts |
//! | `subject.rs`, `share.rs` | what is trained, and the samplers that give samples to ranks |
//! | `session.rs` | one training on one rank, from its first step to its report |
//! | `trained.rs` | the replica that is trained, and the one of a [`Task`](crate::Task) |
//! | `log.rs` | the output of a training while it runs, and at its end |
//! | `metrics.rs`, `report.rs` | its figures: a line of JSON a step, and a summary |
//! | `work.rs` | tokens and waiting of each rank, and the gain from balancing |
//! | `picture.rs` | loss, accuracy and throughput as one SVG |
//! | `progress.rs` | progress on the terminal of rank 0 |
//! | `saves.rs`, `provenance.rs` | its checkpoints, and the options and data that they belong to |
//! | `spent.rs` | time and bytes of steps, by use |
//! | `memory.rs` | the last steps of a rank, from which it continues in the next generation of an elastic job |
//! | `position.rs` | the position of the loader in a checkpoint |
//! | `baseline.rs` | the bytes that synchronous SGD would send |

#![allow(clippy::disallowed_methods, reason = "ranks train on this machine, and its time is what they print")]

mod baseline;
mod log;
mod memory;
mod metrics;
mod options;
mod picture;
pub mod position;
mod progress;
mod provenance;
mod report;
mod saves;
mod session;
mod share;
mod spent;
mod subject;
mod trained;
mod work;

pub use options::{CheckedRun, RunOptions, Subject};
pub use session::TrainingSession;
pub use share::{Costs, SamplerKind};
pub use subject::TaskOptions;
pub use trained::{TaskReplica, Trained, values};

use crate::program::{console, information, prepare};
use clap::{Args, Command, FromArgMatches};
use hexagram::algorithms::Registry;
use hexagram::physical::health::SILENCE_HELP;
use hexagram::physical::stdout::{PrintError, print};
use std::process::ExitCode;

/// Error that ends a training.
pub type RunError = Box<dyn std::error::Error>;

/// Text about exit codes in programs' `--help`.
pub const EXIT_CODES: &str = "\
Exit code: 0, or 1 if something failed or the output could not be written, 2 for a wrong call, 141 if the reader closed the \
output.";

/// Runs a training program of this name: reads its options, the common ones and its `Own`, and calls `train` with them.
/// Prints the algorithms or their help instead, where `--algorithm list` or `help:NAME` asks for it. Returns the exit
/// code.
pub fn main<Own: Args>(
    name: &'static str,
    about: &'static str,
    train: impl FnOnce(RunOptions, Own) -> Result<ExitCode, RunError>,
) -> ExitCode {
    if let Err(code) = prepare("") {
        return code;
    }
    let command = Command::new(name).version(env!("CARGO_PKG_VERSION"));
    // Each brings its own description.
    let command = Own::augment_args(RunOptions::augment_args(command)).about(about).long_about(None);
    let matches = command.after_help(format!("{EXIT_CODES}\n\n{SILENCE_HELP}")).try_get_matches();
    let read = |matches: clap::ArgMatches| {
        Ok((RunOptions::from_arg_matches(&matches)?, Own::from_arg_matches(&matches)?))
    };
    let (common, own) = match matches.and_then(read) {
        Ok(options) => options,
        Err(shown) => return console::instead(name, &shown),
    };
    let asked = information(&Registry::built_in(), &common.algorithm, common.stepping.optimizer.as_deref());
    let outcome = match asked {
        Some(text) => {
            text.map_err(RunError::from).and_then(|text| Ok(print(&text)?)).map(|()| ExitCode::SUCCESS)
        }
        None => train(common, own),
    };
    outcome.unwrap_or_else(|error| failure(name, &*error))
}

/// Prints why a program ends, unless its output has no reader any more; returns the exit code.
pub fn failure(program: &str, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    if let Some(error) = error.downcast_ref::<PrintError>() {
        return error.report(program);
    }
    console::line(program, error);
    ExitCode::FAILURE
}
