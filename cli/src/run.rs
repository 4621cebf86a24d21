//! `hexagram run`: starts the ranks of one job on this machine and ends them together.

use crate::say;
use clap::Args;
use hexagram::launch::{Job, Outcome, Output};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const AFTER_HELP: &str = "\
Exit code: 0 if every rank succeeded, the code of the rank that failed first, 128 plus the number of the signal that \
ended the job, 2 for a wrong call, 1 if the ranks cannot be started.

Example: hexagram run -n 4 -- ./train --epochs 3";

/// Run a program as several ranks on this machine.
///
/// Each rank is one process, told by its environment which rank it is and how to meet the others; the program needs
/// no option for it. Lines of output begin with the rank that wrote them: `[2] epoch 1`.
///
/// The first rank that fails ends the job and is named. Ctrl-C ends all ranks (SIGTERM, then SIGKILL after the grace
/// period), a second Ctrl-C at once. No process is left behind, even if this program is killed.
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Run {
    /// How many ranks to start
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,

    /// Let the ranks write to the terminal themselves, without a prefix (lines may mix)
    #[arg(long)]
    no_prefix: bool,

    /// Seconds from asking the ranks to end (SIGTERM) to killing them (SIGKILL)
    #[arg(long, value_name = "SECONDS", default_value_t = hexagram::launch::DEFAULT_GRACE.as_secs())]
    grace: u64,

    /// What each rank runs: a path, or a name found in PATH
    program: PathBuf,

    /// Its arguments
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Run {
    /// Runs the job and says on stderr, in one line, why it did not succeed.
    pub(crate) fn execute(self) -> ExitCode {
        let ranks = self.ranks;
        let (said, code) = match self.job().run() {
            Ok(Outcome::Success) => return ExitCode::SUCCESS,
            Ok(outcome) => (describe(&outcome, ranks), outcome.exit_code()),
            Err(error) => return say::failure("run", &error),
        };
        say::line("run", said);
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    }

    fn job(self) -> Job {
        Job {
            arguments: self.arguments,
            output: if self.no_prefix { Output::Inherit } else { Output::Prefixed },
            grace: Duration::from_secs(self.grace),
            ..Job::new(self.ranks, self.program)
        }
    }
}

/// What is said about a job of so many `ranks` that did not succeed.
fn describe(outcome: &Outcome, ranks: usize) -> String {
    match (outcome, ranks) {
        (Outcome::Success, _) | (Outcome::Failed(_), 1) => outcome.to_string(),
        (Outcome::Failed(first), 2) => format!("{first} first; ended the other rank"),
        (Outcome::Failed(first), _) => format!("{first} first; ended the other {} ranks", ranks - 1),
        (Outcome::Interrupted { .. }, _) => format!("{outcome}; ended every rank"),
    }
}
