//! `hexagram run`: starts the ranks of a job on this machine, alone or as one of several machines, and ends them
//! together.

use crate::console;
use clap::Args;
use hexagram::Error;
use hexagram::launch::{Job, Node, Outcome, Output, Ranks};
use hexagram::physical::bootstrap::variable_os;
use hexagram::physical::health::SILENCE_HELP;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// Variable that names the secret file of a job on several machines; an option overrides it.
const SECRET_FILE: &str = "HEXAGRAM_SECRET_FILE";

const AFTER_HELP: &str = "\
Several machines: run the same command on each, with its own --node-rank and the same --addr, an address of node 0 with a \
free port. Ranks are numbered node by node. All machines need the same secret; make one with
  (umask 077; head -c 32 /dev/urandom | base64 > secret)
and copy it to every machine. A failure ends the job on all machines: each \
launcher reports the first of its own ranks that failed, and the error of that rank names the root cause. With \
--max-restarts or --nnodes MIN:MAX, the launchers meet at --addr and restart together, with the machines that are there; \
node 0 has to outlive the job, and a machine that comes back runs the same command again. With --elastic, the ranks of the \
other machines continue without a restart.

Exit code: 0 if every rank succeeded; the code of the rank that failed first; 128 plus the number of the signal that \
ended the job; 2 for invalid options; 1 if the ranks cannot be started, or if all succeeded but their output could not be \
written. If the reader closes the output (`| head`), the job continues, and its output is dropped.

Examples:
  hexagram run -n 4 -- ./train --epochs 3
  hexagram run -n 4 --max-restarts 3 -- ./train --epochs 30 --checkpoint saved
  hexagram run -n 8 --elastic 2 --max-restarts 10 -- ./program
  hexagram run -n 2 --nnodes 2 --node-rank 0 --addr 10.0.0.1:29400 --secret-file secret -- ./train
  hexagram run -n 2 --nnodes 2 --node-rank 1 --addr 10.0.0.1:29400 --secret-file secret -- ./train";

/// Run a program as several ranks, on this machine or on several.
///
/// Each rank is one process. Environment variables give it its rank and the rendezvous address; the program needs no
/// option for them. Lines of output begin with the rank that wrote them: `[2] epoch 1`.
///
/// The first rank that fails ends the job and is named. Ctrl-C ends all ranks (SIGTERM, then SIGKILL after the grace
/// period); a second Ctrl-C kills them immediately. Ctrl-Z stops the ranks, and they continue with this program. All
/// processes of the job end with it, including those that a rank started in a session of its own; only the latter
/// survive if this program itself is killed.
#[derive(Args)]
#[command(after_help = format!("{AFTER_HELP}\n\n{SILENCE_HELP}"))]
pub(crate) struct Run {
    /// Number of ranks to start on this machine
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,

    /// Number of machines, each with the same number of ranks. With MIN:MAX, the job starts, and restarts, with all machines
    /// that are present, from MIN to MAX
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1")]
    nnodes: Nodes,

    /// Index of this machine, from 0
    #[arg(long, value_name = "R", requires = "addr")]
    node_rank: Option<usize>,

    /// Address of node 0 at which rank 0 listens, with a free port
    #[arg(long, value_name = "HOST:PORT", requires = "node_rank")]
    addr: Option<String>,

    /// File with the secret that all ranks share, required on several machines [default: HEXAGRAM_SECRET_FILE]
    #[arg(long, value_name = "FILE", requires = "addr")]
    secret_file: Option<PathBuf>,

    /// Keep the whole output of each rank in files of this folder, rank-3.out and rank-3.err; existing files are not
    /// overwritten
    #[arg(long, value_name = "FOLDER", conflicts_with = "no_prefix")]
    log_dir: Option<PathBuf>,

    /// Print only the stdout of these ranks, as in 0,2-3; stderr and the final report are always printed
    #[arg(long, value_name = "RANKS", conflicts_with = "no_prefix")]
    show: Option<Ranks>,

    /// Connect the ranks directly to the terminal, without a prefix (lines may mix)
    #[arg(long)]
    no_prefix: bool,

    /// Seconds between SIGTERM and SIGKILL when the job ends
    #[arg(long, value_name = "SECONDS", default_value_t = hexagram::launch::DEFAULT_GRACE.as_secs())]
    grace: u64,

    /// Start the job again, up to this many times, if a rank fails: from its first rank on, so the program has to resume
    /// from a checkpoint (`train --checkpoint FOLDER` does). A job with checkpoints that fails three times in a row without a
    /// new one ends. On several machines, the number of node 0 counts. The logs of
    /// restart 1 go to the folder restart-1 of --log-dir
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_restarts: u32,

    /// Continue with the ranks that are left, MIN or more, when a rank fails, in the same processes: for a program that calls
    /// World::next. With --max-restarts N, up to N processes start in place of those that have failed, and join the others. On
    /// several machines, MIN counts the ranks of all of them, and machines may come and go while the others work
    #[arg(long, value_name = "MIN")]
    elastic: Option<usize>,

    /// Start the job again as soon as a machine comes, instead of at the next restart: an option of node 0
    #[arg(long, requires = "addr")]
    grow: bool,

    /// Seconds that a restart waits for the machines of the last start; it then continues with MIN of --nnodes or more. With
    /// --elastic, seconds after a change until a rank that has not continued is killed: more than it computes between two
    /// operations
    #[arg(long, value_name = "SECONDS", default_value_t = hexagram::launch::DEFAULT_REJOIN_WAIT.as_secs())]
    rejoin_wait: u64,

    /// Program that each rank runs: a path, or a name found in PATH
    program: PathBuf,

    /// Arguments of the program
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Numbers of machines.
#[derive(Debug, Clone, Copy)]
struct Nodes {
    least: usize,
    most: usize,
}

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a number of machines"));
        Ok(Nodes { least: number(least)?, most: number(most)? })
    }
}

impl Run {
    /// Runs the job. If it fails, prints the reason on stderr, in one line.
    pub(crate) fn execute(self) -> ExitCode {
        let job = match self.job() {
            Ok(job) => job,
            Err(error) => return console::failure("hexagram run", error),
        };
        let (said, code) = match job.run() {
            Ok(Outcome::Success) => return ExitCode::SUCCESS,
            Ok(outcome) => (describe(&outcome, &job), outcome.exit_code()),
            Err(error) => return console::failure("hexagram run", error),
        };
        console::line("hexagram run", said);
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
            max_restarts: self.max_restarts,
            grow: self.grow,
            rejoin_wait: Duration::from_secs(self.rejoin_wait),
            elastic: self.elastic,
            ..Job::new(self.ranks, self.program)
        })
    }

    /// Returns the part of this machine, if the job has several.
    fn node(&self) -> Result<Option<Node>, Error> {
        let (number, address) = match (self.node_rank, &self.addr) {
            (Some(number), Some(address)) => (number, address.clone()),
            _ if self.nnodes.most == 1 => return Ok(None),
            _ => {
                let what = format!("--nnodes {} without --node-rank and --addr", self.nnodes.most);
                return Err(Error::usage(what, "add --node-rank N and --addr HOST:PORT"));
            }
        };
        let given = self.secret_file.clone().or_else(|| variable_os(SECRET_FILE).map(PathBuf::from));
        let secret = given.ok_or_else(|| {
            Error::usage(
                "ranks on several machines need a shared secret, and none was given",
                "make one with `(umask 077; head -c 32 /dev/urandom | base64 > secret)`, copy it to every machine, and \
                 start each launcher with --secret-file secret",
            )
        })?;
        let Nodes { least, most } = self.nnodes;
        Ok(Some(Node { number, nodes: most, least, address, secret }))
    }
}

/// Describes an unsuccessful job.
fn describe(outcome: &Outcome, job: &Job) -> String {
    let others = match job.ranks {
        1 => String::new(),
        2 => "; ended the other rank".to_owned(),
        ranks => format!("; ended the other {} ranks", ranks - 1),
    };
    match (outcome, &job.node) {
        (Outcome::Success | Outcome::Elsewhere { .. }, _) => outcome.to_string(),
        (Outcome::Interrupted { .. }, None) => format!("{outcome}; ended every rank"),
        (Outcome::Interrupted { .. }, Some(_)) => format!("{outcome}; ended every rank of this node"),
        (Outcome::Failed(first), None) if job.ranks == 1 => first.to_string(),
        (Outcome::Failed(first), None) if job.elastic.is_some() => {
            format!("{first}; ended the ranks that were left")
        }
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
