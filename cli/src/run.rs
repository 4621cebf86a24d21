//! `hexagram run`: starts the ranks of one job on this machine, alone or with others, and ends them together.

use crate::say;
use clap::Args;
use hexagram::Error;
use hexagram::launch::{Job, Node, Outcome, Output, Ranks};
use hexagram::physical::bootstrap::variable_os;
use hexagram::physical::health::SILENCE_HELP;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Variable that names the file with the secret of a job on several machines, unless an option does.
const SECRET_FILE: &str = "HEXAGRAM_SECRET_FILE";

const AFTER_HELP: &str = "\
Several machines: run the same command on each, with its own --node-rank and the same --addr, an address of node 0 with \
a port that is free there. Ranks are numbered node by node. All need the same secret; make one with
  (umask 077; head -c 32 /dev/urandom | base64 > secret)
and copy it to every machine. The ranks tell each other of a failure, so that it ends the job on all machines: each \
launcher reports the first of its own ranks that failed, whose message names the one to blame.

Exit code: 0 if every rank succeeded, the code of the rank that failed first, 128 plus the number of the signal that \
ended the job, 2 for a wrong call, 1 if the ranks cannot be started, or if all succeeded but their output could not be \
written. If the reader has closed it (`| head`), the job continues, and its output is dropped.

Examples:
  hexagram run -n 4 -- ./train --epochs 3
  hexagram run -n 2 --nnodes 2 --node-rank 0 --addr 10.0.0.1:29400 --secret-file secret -- ./train
  hexagram run -n 2 --nnodes 2 --node-rank 1 --addr 10.0.0.1:29400 --secret-file secret -- ./train";

/// Run a program as several ranks, on this machine or on several.
///
/// Each rank is one process, told by its environment which rank it is and where to find the others; the program needs
/// no option for it. Lines of output begin with the rank that wrote them: `[2] epoch 1`.
///
/// The first rank that fails ends the job and is named. Ctrl-C ends all ranks (SIGTERM, then SIGKILL after the grace
/// period), a second Ctrl-C at once. Ctrl-Z stops them, and they go on with this program. No process is left behind,
/// also none that a rank has started in a session of its own; if this program is killed, all end but the latter.
#[derive(Args)]
#[command(after_help = format!("{AFTER_HELP}\n\n{SILENCE_HELP}"))]
pub(crate) struct Run {
    /// Number of ranks to start on this machine
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,

    /// Number of machines, each with as many ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    nnodes: usize,

    /// Number of this machine, from 0
    #[arg(long, value_name = "R", requires = "addr")]
    node_rank: Option<usize>,

    /// Address of node 0 at which rank 0 listens, with a port that is free there
    #[arg(long, value_name = "HOST:PORT", requires = "node_rank")]
    addr: Option<String>,

    /// A file with the secret that all ranks share, needed on several machines [default: HEXAGRAM_SECRET_FILE]
    #[arg(long, value_name = "FILE", requires = "addr")]
    secret_file: Option<PathBuf>,

    /// Keep the whole output of each rank in files of this folder, rank-3.out and rank-3.err; none is overwritten
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_prefix")]
    log_dir: Option<PathBuf>,

    /// Print the stdout of these ranks only, as in 0,2-3; stderr and the final report are printed always
    #[arg(long, value_name = "RANKS", conflicts_with = "no_prefix")]
    show: Option<Ranks>,

    /// Let the ranks write to the terminal themselves, without a prefix (lines may mix)
    #[arg(long)]
    no_prefix: bool,

    /// Seconds from asking the ranks to end (SIGTERM) to killing them (SIGKILL)
    #[arg(long, value_name = "SECONDS", default_value_t = hexagram::launch::DEFAULT_GRACE.as_secs())]
    grace: u64,

    /// Program that each rank runs: a path, or a name found in PATH
    program: PathBuf,

    /// Arguments of the program
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Run {
    /// Runs the job and says on stderr, in one line, why it did not succeed.
    pub(crate) fn execute(self) -> ExitCode {
        let job = match self.job() {
            Ok(job) => job,
            Err(error) => return say::failure("hexagram run", error),
        };
        let (said, code) = match job.run() {
            Ok(Outcome::Success) => return ExitCode::SUCCESS,
            Ok(outcome) => (describe(&outcome, &job), outcome.exit_code()),
            Err(error) => return say::failure("hexagram run", error),
        };
        say::line("hexagram run", said);
        ExitCode::from(u8::try_from(code).unwrap_or(1))
    }

    fn job(self) -> Result<Job, Error> {
        let node = self.node()?;
        Ok(Job {
            node,
            arguments: self.arguments,
            output: if self.no_prefix { Output::Inherit } else { Output::Prefixed },
            show: self.show,
            logs: self.log_dir,
            grace: Duration::from_secs(self.grace),
            ..Job::new(self.ranks, self.program)
        })
    }

    /// Returns this machine's part, if there are several.
    fn node(&self) -> Result<Option<Node>, Error> {
        let (number, address) = match (self.node_rank, &self.addr) {
            (Some(number), Some(address)) => (number, address.clone()),
            _ if self.nnodes == 1 => return Ok(None),
            _ => {
                let what = format!("--nnodes {} without --node-rank and --addr", self.nnodes);
                return Err(Error::usage(what, "say which node this is, and where rank 0 listens"));
            }
        };
        let given = self.secret_file.clone().or_else(|| variable_os(SECRET_FILE).map(PathBuf::from));
        let secret = given.ok_or_else(|| {
            Error::usage(
                "ranks on several machines know each other by a secret, and none was given",
                "make one with `(umask 077; head -c 32 /dev/urandom | base64 > secret)`, copy it to every machine, and \
                 start each launcher with --secret-file secret",
            )
        })?;
        Ok(Some(Node { number, nodes: self.nnodes, address, secret }))
    }
}

/// Describes a job that did not succeed.
fn describe(outcome: &Outcome, job: &Job) -> String {
    let others = match job.ranks {
        1 => String::new(),
        2 => "; ended the other rank".to_owned(),
        ranks => format!("; ended the other {} ranks", ranks - 1),
    };
    match (outcome, &job.node) {
        (Outcome::Success, _) => outcome.to_string(),
        (Outcome::Interrupted { .. }, None) => format!("{outcome}; ended every rank"),
        (Outcome::Interrupted { .. }, Some(_)) => format!("{outcome}; ended every rank of this node"),
        (Outcome::Failed(first), None) if job.ranks == 1 => first.to_string(),
        (Outcome::Failed(first), None) => format!("{first} first{others}"),
        (Outcome::Failed(first), Some(node)) => {
            format!(
                "{first} first on node {}{others}{}",
                node.number,
                if job.ranks > 1 { " here" } else { "" }
            )
        }
    }
}
