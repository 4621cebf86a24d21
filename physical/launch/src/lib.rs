//! Starts the ranks of a job as processes on this machine, and ends them together, as `hexagram run` does.
//!
//! Use it from a program that starts ranks itself, such as a benchmark or a test. For several machines, run one
//! launcher on each (see [`Node`]), or use `mpirun`, `srun` or `torchrun`, whose variables hexagram also reads.
//!
//! | module | content |
//! |---|---|
//! | `rendezvous`, `environment` | listener and secret of the job, and the variables of each rank |
//! | `rank`, `descendants` | the process of a rank, and the processes that it starts |
//! | `output`, `logs`, `filter` | the ranks' output, the files that keep it, and the ranks whose output is printed |
//! | `node`, `machines` | jobs on several machines, and their restarts |
//! | `elastic` | jobs whose ranks continue in the same processes after a change of their members |
//! | `supervise`, `signals` | the rule by which one failure ends all, and the signals to the launcher |
//! | `report`, `outcome` | the report of a rank that ended before it joined, and the result of the job |
//! | `program` | programs that start their own ranks |
//! | `deadline` | waits until a time |

#![allow(clippy::disallowed_methods, reason = "starts and ends processes of the system")]

mod deadline;
mod descendants;
mod elastic;
mod environment;
mod filter;
mod logs;
mod machines;
mod node;
mod outcome;
mod output;
mod program;
mod rank;
mod rendezvous;
mod report;
mod signals;
mod supervise;

pub use environment::forget_rank;
pub use filter::Ranks;
pub use hexagram_physical::ranks::MAX_RANKS;
pub use node::Node;
pub use outcome::{FirstFailure, Outcome};
pub use program::this_program;

use hexagram_physical::launcher::{
    DESCRIPTORS, exhausted, more_open_files, raise_open_files, warn_of_rank_given, warn_of_unknown,
};
use hexagram_physical::world::check_environment;
use hexagram_physical::{Error, Result};
use std::ffi::OsString;
use std::io::{self, Write};
use std::panic;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Default of [`Job::grace`].
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Default of [`Job::rejoin_wait`].
pub const DEFAULT_REJOIN_WAIT: Duration = Duration::from_secs(60);

/// Program that is started once per rank.
///
/// ```no_run
/// use hexagram_launch::{Job, Outcome};
///
/// let job = Job { arguments: vec!["--epochs".into(), "3".into()], ..Job::new(4, "./train") };
/// if let Outcome::Failed(first) = job.run()? {
///     eprintln!("{first}");
/// }
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Job {
    /// Number of ranks on this machine, from 1 to [`MAX_RANKS`].
    pub ranks: usize,
    /// Part of this machine in a job on several machines. Default: `None`, a single machine.
    pub node: Option<Node>,
    /// Program of each rank: a path, or a name that is looked up in `PATH`.
    pub program: PathBuf,
    /// Arguments of the program, the same for every rank.
    pub arguments: Vec<OsString>,
    /// Variables added to those of this process. They cannot replace the variables that hexagram sets.
    pub environment: Vec<(OsString, OsString)>,
    /// Destination of the output of the ranks.
    pub output: Output,
    /// Ranks whose stdout is printed; `None` for all. Output to stderr is always printed.
    pub show: Option<Ranks>,
    /// Folder for log files with the whole output, `rank-3.out` and `rank-3.err`. Existing files are not overwritten,
    /// but an error.
    pub logs: Option<PathBuf>,
    /// Time from SIGTERM to SIGKILL, if the job is interrupted or a rank has failed. Default: [`DEFAULT_GRACE`].
    pub grace: Duration,
    /// How many times a job that has failed starts again, from its first rank on; that of machine 0 counts. Each rank finds
    /// the number of restarts in `HEXAGRAM_RESTART`. Default: 0, and the ranks inherit the variable.
    pub max_restarts: u32,
    /// True to start again when a launcher comes: such a start does not count as a restart. Default: false, it waits for the
    /// next restart.
    pub grow: bool,
    /// Longest time that a restart waits for machines of the last start, and that an elastic job waits for a rank after a
    /// change. Default: [`DEFAULT_REJOIN_WAIT`].
    pub rejoin_wait: Duration,
    /// Smallest number of ranks, on all machines together, of an elastic job. Its ranks continue in the same processes when one
    /// of them dies or one arrives: the program calls [`World::next`](hexagram_physical::World::next). Default: `None`, the first
    /// rank to fail ends the job.
    pub elastic: Option<usize>,
}

/// Destination of the output of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// This process writes each line of the stdout and stderr of a rank to its own, as a whole, after `[rank] `.
    ///
    /// Lines above 64 KiB are cut. If the reader closes the output (`| head`), the job continues and its output is
    /// dropped.
    #[default]
    Prefixed,
    /// The ranks inherit the stdout and stderr of this process, so that lines may mix.
    Inherit,
}

/// Prints a line of this launcher on stderr.
fn console_line(what: &str) {
    // Without a reader, the job continues.
    let _ = io::stderr().write_all(format!("hexagram: {what}\n").as_bytes());
}

impl Job {
    /// Creates a job without arguments or additional variables, with prefixed output and [`DEFAULT_GRACE`].
    pub fn new(ranks: usize, program: impl Into<PathBuf>) -> Self {
        Job {
            ranks,
            node: None,
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            output: Output::default(),
            show: None,
            logs: None,
            grace: DEFAULT_GRACE,
            max_restarts: 0,
            grow: false,
            rejoin_wait: DEFAULT_REJOIN_WAIT,
            elastic: None,
        }
    }

    /// Creates a job of this program, with its own arguments, as `ranks` processes that write to its own output. In
    /// each of them [`Placement::from_env`](hexagram_physical::bootstrap::Placement::from_env) returns its rank.
    ///
    /// # Errors
    /// [`Error::System`] if the system does not report the path of the program.
    pub fn of_this_program(ranks: usize) -> Result<Self> {
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Job { arguments, output: Output::Inherit, ..Job::new(ranks, this_program()?) })
    }

    /// Starts the ranks. Returns when all of them, and all processes that they have started, have ended.
    ///
    /// The first rank to fail ends the job: the others have 2 s to end by themselves, then get SIGTERM, and after
    /// [`Job::grace`] SIGKILL. SIGINT, SIGTERM and SIGHUP to this process end the job in the same way without the 2
    /// s; a SIGINT after that kills immediately. SIGTSTP (Ctrl-Z) stops the ranks and then this process; SIGCONT
    /// continues both. If this process itself is killed, the kernel kills the ranks and their process groups.
    ///
    /// After the first call, those signals no longer end or stop this process (SIGHUP and SIGTSTP: unless they were
    /// ignored before, as under `nohup`). A program that continues after its job must handle them itself.
    ///
    /// A job that fails starts again, up to [`Job::max_restarts`] times, after a line on stderr that names the rank. A job that
    /// was interrupted does not, nor one that uses [checkpoints](hexagram_physical::launcher::note_checkpoint) and has failed
    /// three times in a row without a new one. On several machines, the launchers meet at [`Node::address`]; the launcher of
    /// machine 0 decides, and has to outlive the job. A restart continues with the machines that are present after
    /// [`Job::rejoin_wait`], at least [`Node::least`] of them, and renumbers their ranks. A launcher that joins later waits for
    /// the next start.
    ///
    /// In an elastic job, a rank that fails ends only itself. While fewer than [`Job::max_restarts`] processes have been started
    /// in place of others, a process starts in its place, with the number of newcomers so far in `HEXAGRAM_RESTART`. The others
    /// continue, as long as [`Job::elastic`] are left or will start. A rank that ends with success is not replaced. The job is
    /// a success if the ranks that are left then end with success. On several machines, the launcher of machine 0 keeps the
    /// membership. The ranks of a machine that arrives later join the others, and those of one that is lost are not replaced. A
    /// signal to the launcher of another machine takes that machine out of the job.
    ///
    /// The limit of open files of this process, which the ranks inherit, is raised to the maximum that the system
    /// allows.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for numbers out of range. [`Error::Setup`] for an invalid value of a variable of this
    /// library, which the ranks would inherit. [`Error::System`] if a rank cannot be started (those already started
    /// are killed) or killed, if a log cannot be created, or if every rank succeeded but their output could not be
    /// written. A rank that fails is not an error, but an [`Outcome`].
    pub fn run(&self) -> Result<Outcome> {
        self.check()?;
        check_environment()?;
        warn_of_unknown(None);
        // On several machines, a different launcher may have started one of these on each machine.
        if self.node.is_none() {
            warn_of_rank_given(self.ranks);
        }
        raise_open_files();
        // A dedicated thread: ranks die with the thread that started them, and the caller may be inside a runtime.
        thread::scope(|scope| {
            let launcher = thread::Builder::new().name("hexagram-launch".into());
            let started = launcher.spawn_scoped(scope, || self.run_on_this_thread());
            let running = started.map_err(Error::no_thread)?;
            running.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
        })
    }

    /// Creates the error for a launcher that has run out of descriptors.
    fn out_of_files(&self, doing: String, cause: io::Error) -> Error {
        if !exhausted(&cause) {
            let remedy = "allow epoll_create1, eventfd2 and pidfd_open; a container may deny them";
            return Error::system(doing, cause, remedy);
        }
        // For each rank: a descriptor of the process, one of its guard, two for its output, and two for its logs.
        let each = u64::from(self.elastic.is_some())
            + 2
            + if self.output == Output::Prefixed { 2 } else { 0 }
            + if self.logs.is_some() { 2 } else { 0 };
        let needed = DESCRIPTORS + each * self.ranks as u64;
        Error::system(doing, cause, more_open_files(needed, &format!("starting {} ranks", self.ranks)))
    }

    /// Runs the job on a runtime of this thread.
    fn run_on_this_thread(&self) -> Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| self.out_of_files("watch processes".to_owned(), cause))?;
        let outcome = runtime.block_on(supervise::supervise(self));
        // A write to an output that has no reader may be stuck in a helper thread; the outcome does not wait for it.
        runtime.shutdown_background();
        outcome
    }
}
