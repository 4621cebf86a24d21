//! Ranks of a subcommand: it is one of them under a launcher, and starts them all otherwise.

use crate::{say, transports};
use hexagram::launch::{Job, Outcome, as_rank, as_threads};
use hexagram::physical::stdout::READER_GONE;
use hexagram::{Error, JoinOptions, Placement, Result, TransportKind, World};

/// Ranks to start when nobody says how many.
const RANKS: usize = 2;

/// The ranks that a subcommand was asked to run on.
pub(crate) struct Ranks {
    pub(crate) subcommand: &'static str,
    pub(crate) ranks: Option<usize>,
    pub(crate) transport: TransportKind,
}

/// Place where the ranks ran.
pub(crate) enum Ran<R> {
    /// In this process: what each of them returned.
    Here(Vec<R>),
    /// In processes of their own: what to exit with.
    Elsewhere(u8),
}

impl Ranks {
    /// Runs `rank` as this process's rank, or starts all ranks and waits for them.
    pub(crate) fn run<R: Send>(&self, rank: impl Fn(&World) -> Result<R> + Sync) -> Result<Ran<R>> {
        // MPI itself says which rank this is, and needs no address besides.
        let by_mpi = Some(self.transport) == transports::mpi();
        if by_mpi || Placement::from_env()?.is_some() {
            return self.one(rank).map(|result| Ran::Here(vec![result]));
        }
        if self.transport == TransportKind::Thread {
            let ranks =
                as_threads(self.ranks.unwrap_or(RANKS), |world| as_rank(world, |world| rank(&world)))?;
            return ranks.into_iter().collect::<Result<_>>().map(Ran::Here);
        }
        let outcome = Job::of_this_program(self.ranks.unwrap_or(RANKS))?.run()?;
        let code = u8::try_from(outcome.exit_code()).unwrap_or(1);
        if !matches!(outcome, Outcome::Success) && code != READER_GONE {
            say::line(self.subcommand, &outcome);
        }
        Ok(Ran::Elsewhere(code))
    }

    /// Runs this process's rank, of those that a launcher has started.
    fn one<R>(&self, rank: impl Fn(&World) -> Result<R>) -> Result<R> {
        let world = World::join(&JoinOptions { transport: self.transport, ..JoinOptions::default() })?;
        if let Some(ranks) = self.ranks.filter(|ranks| *ranks != world.size()) {
            let what = format!("--ranks {ranks}, but a launcher has started {}", world.size());
            return Err(Error::usage(what, "leave --ranks out under a launcher, which gives their number"));
        }
        as_rank(world, |world| rank(&world))
    }
}
