//! Which rank is this? Read from the variables that launchers set.
//!
//! Sets are tried in this order: hexagram's own, torchrun's, Open MPI's, PMI's (MPICH, Intel MPI), PMIx's, MVAPICH's,
//! Slurm's. The first complete one wins. A set that contradicts itself is refused, whichever set wins, and so are two that
//! contradict each other, unless one is Slurm's: mpirun and torchrun may themselves run inside a step of `srun`, whose
//! numbers are then not those of the ranks.
//!
//! Every variable of this library is read by [`variable`]: one that is empty is not set.
//!
//! `set` reads and checks the numbers, `slurm` those of Slurm, `place` finds out where the ranks meet.

mod ranks;
mod rendezvous;
mod slurm;
#[cfg(test)]
mod tests;

use super::rendezvous::{ListenContext, Rendezvous};
use super::secret;
use crate::error::Result;
use ranks::RankVariables;
pub(crate) use ranks::{MAX_SIZE, of_other_launchers};
pub(crate) use rendezvous::host_and_port;
use slurm::SlurmStep;
use std::ffi::OsString;
use std::fmt;

/// Returns the value of an environment variable. One that is empty or blank counts as not set.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Returns the value of an environment variable that need not be text, such as a path. One that is empty or blank counts as
/// not set.
pub fn variable_os(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.to_string_lossy().trim().is_empty())
}

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `hexagram run`, or anyone who sets its variables.
    Hexagram,
    /// torchrun, or anyone who sets its variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Another process manager with PMI: Hydra, which is the mpiexec of MPICH and Intel MPI.
    Pmi,
    /// Another process manager with PMIx.
    Pmix,
    /// MVAPICH's mpirun_rsh.
    Mvapich,
    /// srun.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Hexagram => "HEXAGRAM_*",
            Launcher::Torchrun => "torchrun's",
            Launcher::OpenMpi => "Open MPI's",
            Launcher::Pmi => "PMI's",
            Launcher::Pmix => "PMIx's",
            Launcher::Mvapich => "MVAPICH's",
            Launcher::Slurm => "Slurm's",
        })
    }
}

/// This process's place in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// This rank, below `size`.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Rank among the processes of this host.
    pub local_rank: usize,
    /// Number of ranks on this host.
    pub local_size: usize,
    /// Where the ranks meet.
    pub rendezvous: Rendezvous,
    /// What proves that a process belongs to the job; empty if none was given.
    pub secret: Vec<u8>,
    /// Whose variables said so.
    pub launcher: Launcher,
}

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Placement {
    /// Reads the environment; `None` if no launcher set it.
    ///
    /// # Errors
    /// [`Error::Setup`](crate::Error::Setup) if a set is malformed, contradicts itself or another one, or lacks what it
    /// needs.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_lookup(&variable)
    }

    /// Rank and size in the set that wins, and whose it is, wherever the ranks may meet.
    #[cfg(feature = "mpi")]
    pub(crate) fn claimed() -> Result<Option<(usize, usize, Launcher)>> {
        let first = RankVariables::all(&variable)?.into_iter().next();
        Ok(first.map(|set| (set.rank, set.size, set.launcher)))
    }

    pub(super) fn from_lookup(get: Lookup<'_>) -> Result<Option<Self>> {
        let get: Lookup<'_> = &|name| get(name).filter(|value| !value.trim().is_empty());
        let step = SlurmStep::read(get)?;
        let mut sets = RankVariables::all(get)?.into_iter().chain(step.as_ref().map(SlurmStep::set));
        let Some(first) = sets.next() else { return Ok(None) };
        let around = |set: &RankVariables| step.as_ref().is_some_and(|step| step.set().agrees_with(set));
        if let Some(other) = sets.find(|other| !other.agrees_with(&first) && !around(other)) {
            return Err(first.contradicts(&other));
        }
        let step = step.filter(|step| step.set().agrees_with(&first));
        let placement = Self::of(&first, step.as_ref(), get)?;
        let Placement { rank, size, rendezvous, launcher, .. } = &placement;
        tracing::info!("rank {rank} of {size}, rendezvous at {rendezvous}, from {launcher} variables");
        Ok(Some(placement))
    }

    /// What rank 0 may say about its job when it opens the rendezvous.
    pub(crate) fn listen_context(&self) -> ListenContext {
        let alternative = rendezvous::how_to_choose(self.launcher, variable("HEXAGRAM_ADDR").is_some());
        ListenContext { remote_ranks: self.size.saturating_sub(self.local_size), alternative }
    }

    fn of(set: &RankVariables, step: Option<&SlurmStep>, get: Lookup<'_>) -> Result<Self> {
        let rendezvous = rendezvous::rendezvous(set, step, get)?;
        let secret =
            get("HEXAGRAM_SECRET_FILE").map_or_else(|| Ok(Vec::new()), |path| secret::read_given(&path))?;
        let RankVariables { launcher, rank, size, local } = *set;
        let local = local.or_else(|| step.and_then(|step| step.local));
        let (local_rank, local_size) = local.unwrap_or((rank, size));
        Ok(Placement { rank, size, local_rank, local_size, rendezvous, secret, launcher })
    }
}

/// The rendezvous place of one host at which only this user's `job` meets.
fn local_name(job: &str) -> Rendezvous {
    let user = rustix::process::geteuid().as_raw();
    Rendezvous::Local(format!("hexagram-{user}-{job}"))
}
