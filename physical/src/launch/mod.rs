//! Starts the ranks of one job as processes on this machine and ends them together: what `hexagram run` does.
//!
//! Use it from a program that starts ranks itself, such as a benchmark or a test. For several machines run one on each,
//! as [`Node`] says, or use `mpirun`, `srun` or `torchrun`, whose variables hexagram reads as well.
//!
//! `setup` is how the ranks find and trust each other, `environment` what each is told, `rank` one process,
//! `descendants` what it has started, `output` its lines, `logs` its files, `filter` whose lines are printed, `node`
//! what differs with several machines, `supervise` the rule by which one failure ends all, `report` what ranks that are
//! still rendezvous are told of it, `outcome` what is said about it; `own` is for programs that start their own ranks.

mod descendants;
mod environment;
mod filter;
mod logs;
mod node;
mod outcome;
mod output;
mod own;
mod rank;
mod rendezvous;
mod report;
mod signals;
mod supervise;

pub use filter::Ranks;
pub use node::Node;
pub use outcome::{FirstFailure, Outcome};
pub(crate) use own::side_by_side;
pub use own::{as_rank, as_threads};

use crate::error::{Error, Result};
use crate::limits;
use std::ffi::OsString;
use std::io;
use std::panic;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// The most ranks one job may have on one machine: far above any core count, far below what exhausts process ids.
pub const MAX_RANKS: usize = 1024;

/// How long ranks have to end by themselves after SIGTERM, unless [`Job::grace`] says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// One program, started once per rank.
///
/// ```no_run
/// use hexagram_physical::launch::{Job, Outcome};
///
/// let job = Job { arguments: vec!["--epochs".into(), "3".into()], ..Job::new(4, "./train") };
/// if let Outcome::Failed(first) = job.run()? {
///     eprintln!("{first}");
/// }
/// # Ok::<(), hexagram_physical::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Job {
    /// How many ranks on this machine, from 1 to [`MAX_RANKS`].
    pub ranks: usize,
    /// This machine's part, if there are several.
    pub node: Option<Node>,
    /// What each rank runs: a path, or a name that is looked up in `PATH`.
    pub program: PathBuf,
    /// Its arguments, the same for every rank.
    pub arguments: Vec<OsString>,
    /// Variables to set on top of this process's own. They cannot replace those that hexagram sets.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the ranks' output goes.
    pub output: Output,
    /// Whose stdout is printed; everyone's if `None`. What ranks write to stderr is always printed.
    pub show: Option<Ranks>,
    /// A folder for files with the whole output, `rank-3.out` and `rank-3.err`. Files that are there already are an
    /// error: nothing is overwritten.
    pub logs: Option<PathBuf>,
    /// From SIGTERM to SIGKILL, when the job is interrupted or a rank has failed.
    pub grace: Duration,
}

/// Where the output of the ranks goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Each line of a rank's stdout and stderr goes to this process's, whole, as it is, and with `[rank] ` before it.
    ///
    /// A line above 64 KiB is cut. If nobody reads any more (`| head`), the job goes on and its output is dropped.
    #[default]
    Prefixed,
    /// The ranks write to this process's stdout and stderr themselves, so that lines may mix.
    Inherit,
}

impl Job {
    /// A job without arguments or additional variables, with prefixed output and [`DEFAULT_GRACE`].
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
        }
    }

    /// Starts the ranks and waits until all of them, and everything that they have started, have ended.
    ///
    /// The first rank to fail ends the job: the others have 2 s to end by themselves, then get SIGTERM, then, after
    /// [`Job::grace`], SIGKILL. SIGINT, SIGTERM and SIGHUP to this process end it in the same way without the 2 s; a
    /// SIGINT after that kills at once. SIGTSTP (Ctrl-Z) stops the ranks and then this process; when that goes on, so do
    /// they. Should this process itself be killed, the kernel kills the ranks and their process groups.
    ///
    /// From the first call on, those signals do not end or stop this process any more (SIGHUP and SIGTSTP: unless they were
    /// ignored before, as under `nohup`): a program that goes on after its job has to watch for them itself.
    ///
    /// This process's limit of open files, which the ranks inherit, is raised as far as the system lets it: each rank takes
    /// several.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] for numbers out of range, [`Error::System`] if a rank cannot be started (those already started
    /// are killed) or does not die, or a log cannot be made, or every rank succeeded but what they wrote could not be
    /// passed on or kept. A rank that fails is no error, but an [`Outcome`].
    pub fn run(&self) -> Result<Outcome> {
        self.check()?;
        limits::raise_open_files();
        // A thread of its own: ranks die with the thread that started them, and the caller may be inside a runtime.
        thread::scope(|scope| {
            let launcher = thread::Builder::new().name("hexagram-launch".into());
            let started = launcher.spawn_scoped(scope, || self.run_on_this_thread());
            let running = started.map_err(Error::no_thread)?;
            running.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked))
        })
    }

    /// What to say where this process could open no more files.
    fn out_of_files(&self, doing: String, cause: io::Error) -> Error {
        // A descriptor of the process, one that guards it, two for its output, and two for the files that keep it.
        let each =
            2 + if self.output == Output::Prefixed { 2 } else { 0 } + if self.logs.is_some() { 2 } else { 0 };
        let needed = limits::LAUNCHER + each * self.ranks as u64;
        Error::system(
            doing,
            cause,
            limits::more_open_files(needed, &format!("starting {} ranks", self.ranks)),
        )
    }

    fn run_on_this_thread(&self) -> Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| self.out_of_files("watch processes".to_owned(), cause))?;
        let outcome = runtime.block_on(supervise::supervise(self));
        // A write to an output that nobody reads may be stuck in a helper thread; the outcome does not wait for it.
        runtime.shutdown_background();
        outcome
    }
}
