//! Ranks of a program: it is one of them under a launcher, and starts them all otherwise. Use it for a program that
//! runs alike under `hexagram run`, mpirun, srun, torchrun, and alone.

use super::say::PrintError;
use super::{say, transports};
use hexagram::launch::{Job, Outcome, as_rank, as_threads};
use hexagram::physical::stdout::READER_GONE;
use hexagram::{Error, JoinOptions, Placement, Result, TransportKind, World};

/// Ranks that a program was asked to run on.
#[derive(Debug, Clone)]
pub struct Ranks {
    /// Name of the program and its subcommand, which failures begin with.
    pub program: String,
    /// Number of ranks to start; under a launcher, number that there have to be. `None` if nobody has said.
    pub ranks: Option<usize>,
    /// Number of ranks to start if nobody has said.
    pub otherwise: usize,
    /// Transport between the ranks.
    pub transport: TransportKind,
    /// Settings on which the ranks must agree to join, as an error can show them: those that nothing else compares.
    pub configuration: String,
}

/// Place where the ranks ran.
pub enum Ran<R> {
    /// Results of the ranks that ran in this process.
    Here(Vec<R>),
    /// Exit code after ranks in processes of their own.
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

impl Ranks {
    /// Returns the number of ranks that this process starts; `None` where a launcher has started it as one of them.
    ///
    /// # Errors
    /// As [`Placement::from_env`].
    pub fn to_start(&self) -> Result<Option<usize>> {
        // MPI itself says which rank this is, and needs no address besides.
        let by_mpi = Some(self.transport) == transports::mpi();
        let is_rank = by_mpi || Placement::from_env()?.is_some();
        Ok((!is_rank).then_some(self.ranks.unwrap_or(self.otherwise)))
    }

    /// Runs `rank` as this process's rank, or starts all ranks and waits for them.
    ///
    /// # Errors
    /// Those of `rank`, or of the start.
    pub fn run<R: Send>(&self, rank: impl Fn(&World) -> Result<R> + Sync) -> Result<Ran<R>> {
        let Some(ranks) = self.to_start()? else {
            return self.one(rank).map(|result| Ran::Here(vec![result]));
        };
        if self.transport == TransportKind::Thread {
            let ranks = as_threads(ranks, |world| as_rank(world, |world| rank(&world)))?;
            return ranks.into_iter().collect::<Result<_>>().map(Ran::Here);
        }
        let outcome = Job::of_this_program(ranks)?.run()?;
        let code = u8::try_from(outcome.exit_code()).unwrap_or(1);
        if !matches!(outcome, Outcome::Success) && code != READER_GONE {
            say::line(&self.program, &outcome);
        }
        Ok(Ran::Elsewhere(code))
    }

    /// Runs this process's rank, of those that a launcher has started.
    fn one<R>(&self, rank: impl Fn(&World) -> Result<R>) -> Result<R> {
        let world = World::join(&JoinOptions {
            transport: self.transport,
            configuration: self.configuration.clone(),
            ..JoinOptions::default()
        })?;
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks != world.size()) {
            let what = format!("--ranks {ranks}, but a launcher has started {}", world.size());
            return Err(Error::usage(what, "leave --ranks out under a launcher, which gives their number"));
        }
        as_rank(world, |world| rank(&world))
    }
}
