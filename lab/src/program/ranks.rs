//! Ranks of a program. Under a launcher the process is one of them; otherwise it starts them all. Use this for a
//! program that runs the same way under `hexagram run`, mpirun, srun and torchrun, and alone.

use super::console::PrintError;
use super::{console, transports};
use hexagram::launch::{Job, Outcome, as_rank, as_threads};
use hexagram::physical::bootstrap::variable;
use hexagram::physical::stdout::READER_GONE;
use hexagram::physical::world::check_environment;
use hexagram::{Error, JoinOptions, Placement, Result, TransportKind, World};
use std::fmt::Display;
use std::sync::OnceLock;
use std::time::Duration;

/// Variable with the start time of the process that starts the ranks, in seconds of the monotonic clock of this
/// machine.
const STARTED: &str = "HEXAGRAM_EXAMPLE_STARTED";

/// Returns the time of the monotonic clock of this machine at the first call in this process. That clock cannot be
/// set, and is the same for all processes of the machine.
pub fn start_of_program() -> Duration {
    static START: OnceLock<Duration> = OnceLock::new();
    *START.get_or_init(now)
}

/// Returns the time since the launch: since the start of the process that started the ranks, or of this one.
pub fn since_launch() -> Duration {
    let launch =
        variable(STARTED).and_then(|seconds| Duration::try_from_secs_f64(seconds.parse().ok()?).ok());
    now().saturating_sub(launch.unwrap_or_else(start_of_program))
}

fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Ranks that a program was asked to run on.
#[derive(Debug, Clone)]
pub struct ProgramRanks {
    /// Name of the program and its subcommand, with which failures begin.
    pub program: String,
    /// Number of ranks to start; under a launcher, the number to expect. `None` for the default.
    pub ranks: Option<usize>,
    /// Default number of ranks to start.
    pub otherwise: usize,
    /// Transport between the ranks.
    pub transport: TransportKind,
    /// Longest wait for all ranks to join.
    pub deadline: Duration,
    /// Settings on which the ranks must agree to join, as text for an error: those that no later check compares.
    pub configuration: String,
}

/// Place where the ranks ran.
pub enum Ran<R> {
    /// Results of the ranks that ran in this process.
    Here(Vec<R>),
    /// Exit code of ranks in separate processes.
    Elsewhere(u8),
}

impl Ran<std::result::Result<(), PrintError>> {
    /// Returns the exit code.
    ///
    /// # Errors
    /// [`PrintError`] if rank 0 was here and could not print.
    pub fn code(self) -> std::result::Result<u8, PrintError> {
        match self {
            Ran::Here(printed) => printed.into_iter().collect::<std::result::Result<(), _>>().map(|()| 0),
            Ran::Elsewhere(code) => Ok(code),
        }
    }
}

impl ProgramRanks {
    /// Returns the number of ranks that this process starts; `None` if a launcher has started it as a rank.
    ///
    /// # Errors
    /// As [`Placement::is_given`].
    pub fn to_start(&self) -> Result<Option<usize>> {
        // MPI itself provides the rank, and needs no address. Without mpirun, it would be a world of one rank.
        let by_mpi = Some(self.transport) == transports::mpi();
        if by_mpi && matches!(Placement::is_given(), Ok(false)) {
            let what = "the transport mpi needs a launcher, and none has started this process";
            return Err(Error::usage(what, "start it with `mpirun -n 4`, or choose a different transport"));
        }
        let is_rank = by_mpi || Placement::is_given()?;
        Ok((!is_rank).then_some(self.ranks.unwrap_or(self.otherwise)))
    }

    /// Runs `rank` as this process's rank, or starts all ranks and waits for them.
    ///
    /// # Errors
    /// Those of `rank`, or of the start.
    pub fn run<R: Send>(&self, rank: impl Fn(&World) -> Result<R> + Sync) -> Result<Ran<R>> {
        Ok(match self.run_with(|world| as_rank(world, |world| rank(&world)))? {
            Ran::Here(ranks) => Ran::Here(ranks.into_iter().collect::<Result<_>>()?),
            Ran::Elsewhere(code) => Ran::Elsewhere(code),
        })
    }

    /// Runs `rank` as [`run`](Self::run) does, and returns the outcome of each rank that ran in this process.
    ///
    /// # Errors
    /// Those of the start.
    pub fn run_with<R: Send, E: Display + Send>(
        &self,
        rank: impl Fn(World) -> std::result::Result<R, E> + Sync,
    ) -> Result<Ran<std::result::Result<R, E>>> {
        check_environment()?;
        let Some(ranks) = self.to_start()? else {
            return Ok(Ran::Here(vec![rank(self.join()?)]));
        };
        if self.transport == TransportKind::Thread {
            return as_threads(ranks, rank).map(Ran::Here);
        }
        let started = start_of_program().as_secs_f64();
        let environment = vec![(STARTED.into(), started.to_string().into())];
        let outcome = Job { environment, ..Job::of_this_program(ranks)? }.run()?;
        let code = u8::try_from(outcome.exit_code()).unwrap_or(1);
        if !matches!(outcome, Outcome::Success) && code != READER_GONE {
            console::line(&self.program, &outcome);
        }
        Ok(Ran::Elsewhere(code))
    }

    /// Joins the ranks that a launcher has started.
    fn join(&self) -> Result<World> {
        let world = World::join(&JoinOptions {
            transport: self.transport,
            deadline: self.deadline,
            configuration: self.configuration.clone(),
            ..JoinOptions::default()
        })?;
        match self.ranks.filter(|ranks| *ranks != world.size()) {
            None => Ok(world),
            Some(ranks) => {
                let what = format!("--ranks is {ranks}, but the launcher has started {}", world.size());
                Err(Error::usage(what, "omit --ranks under a launcher, which sets the number"))
            }
        }
    }
}
