//! Rank, size and rendezvous of this process, from the variables of launchers.
//!
//! Sets of variables are tried in this order: those of hexagram, torchrun, Open MPI, PMI (MPICH, Intel MPI), PMIx, MVAPICH,
//! Slurm. The first complete one wins. A set that contradicts itself is an error, even if a different set wins. Two sets that
//! contradict each other are an error, unless one of them is Slurm's: mpirun and torchrun may run inside a step of `srun`, and
//! the numbers of that step are then not the ranks.
//!
//! All variables of this library are read with [`variable`]: an empty one counts as unset.
//!
//! `ranks` reads and checks the numbers, `slurm` those of Slurm, and `rendezvous` finds the address.

mod ranks;
mod rendezvous;
mod slurm;
#[cfg(test)]
mod tests;

use super::meeting::rendezvous::{ListenContext, Rendezvous};
use super::private_file::read_given;
use crate::error::Result;
use crate::memory::hash::{START, of_bytes};
use crate::system::environment::variable;
use ranks::RankVariables;
pub(crate) use ranks::parse_number;
pub use ranks::{MAX_SIZE, of_launchers, warn_of_rank_given};
pub use rendezvous::host_and_port;
use slurm::SlurmStep;
use std::fmt;
use std::time::Duration;

/// Launcher that started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `hexagram run`, or a user who sets its variables.
    Hexagram,
    /// torchrun, or a user who sets its variables.
    Torchrun,
    /// mpirun of Open MPI.
    OpenMpi,
    /// Another process manager with PMI: Hydra, the mpiexec of MPICH and Intel MPI.
    Pmi,
    /// Another process manager with PMIx.
    Pmix,
    /// mpirun_rsh of MVAPICH.
    Mvapich,
    /// flux run.
    Flux,
    /// jsrun of IBM's Job Step Manager, under LSF.
    Jsm,
    /// srun.
    Slurm,
    /// None: the program sets rank and size, and the ranks meet through a [`Store`](super::Store).
    Store,
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
            Launcher::Flux => "Flux's",
            Launcher::Jsm => "jsrun's",
            Launcher::Slurm => "Slurm's",
            Launcher::Store => "no launcher's",
        })
    }
}

/// Place of this process in its job.
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
    /// Address of the rendezvous of all ranks.
    pub rendezvous: Rendezvous,
    /// Secret that every rank of the job must prove. Empty if none was given.
    pub secret: Vec<u8>,
    /// Launcher whose variables won.
    pub launcher: Launcher,
}

/// Source of variables by name.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Placement {
    /// Reads the environment of this process. Returns `None` if no launcher set it.
    ///
    /// # Errors
    /// [`Error::Setup`](crate::Error::Setup) if a set is malformed or incomplete, or contradicts itself or another one.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_lookup(&variable)
    }

    /// Returns true if a launcher has started this process as a rank, with or without an address.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env), except for a missing address.
    pub fn is_given() -> Result<bool> {
        Ok(chosen(&variable)?.is_some())
    }

    /// Returns rank, size and launcher of the set that wins, without its rendezvous.
    #[cfg(feature = "mpi")]
    pub(crate) fn claimed() -> Result<Option<(usize, usize, Launcher)>> {
        let first = RankVariables::all(&variable)?.into_iter().next();
        Ok(first.map(|set| (set.rank, set.size, set.launcher)))
    }

    /// Returns rank and size of a process if it can meet the others through the launcher store: the launcher has
    /// ranks on several hosts, and its variables contain no address, except one derived from the host names of Slurm.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub(crate) fn without_address() -> Result<Option<(usize, usize)>> {
        Self::without_address_in(&variable)
    }

    pub(super) fn without_address_in(get: Lookup<'_>) -> Result<Option<(usize, usize)>> {
        let Some((set, _)) = chosen(get)? else { return Ok(None) };
        let names_one = get("HEXAGRAM_ADDR").is_some()
            || matches!(set.launcher, Launcher::Hexagram | Launcher::Torchrun | Launcher::Store);
        Ok((!names_one && !set.is_on_one_host()).then_some((set.rank, set.size)))
    }

    /// Reads the variables that `get` returns.
    pub(super) fn from_lookup(get: Lookup<'_>) -> Result<Option<Self>> {
        let get: Lookup<'_> = &|name| get(name).filter(|value| !value.trim().is_empty());
        let Some((first, step)) = chosen(get)? else { return Ok(None) };
        let placement = Self::of(&first, step.as_ref(), get)?;
        let Placement { rank, size, rendezvous, launcher, .. } = &placement;
        tracing::info!("rank {rank} of {size}, rendezvous at {rendezvous}, from {launcher} variables");
        Ok(Some(placement))
    }

    /// Returns the facts for the listener of rank 0, which resolves its name within `patience`.
    pub(crate) fn listen_context(&self, patience: Duration) -> ListenContext {
        let alternative = rendezvous::how_to_choose(self.launcher, variable("HEXAGRAM_ADDR").is_some());
        ListenContext { remote_ranks: self.size.saturating_sub(self.local_size), alternative, patience }
    }

    /// Creates the placement from the set that won, and the Slurm step that agrees with it.
    fn of(set: &RankVariables, step: Option<&SlurmStep>, get: Lookup<'_>) -> Result<Self> {
        let rendezvous = rendezvous::rendezvous(set, step, get)?;
        let secret = get("HEXAGRAM_SECRET_FILE").map_or_else(|| Ok(Vec::new()), |path| read_given(&path))?;
        let RankVariables { launcher, rank, size, local } = *set;
        let (local_rank, local_size) = local.unwrap_or((rank, size));
        Ok(Placement { rank, size, local_rank, local_size, rendezvous, secret, launcher })
    }
}

/// Returns the set that wins, and the Slurm step that agrees with it. The place on this host is that of the step if
/// the set does not contain it. Returns `None` if no launcher set any.
fn chosen(get: Lookup<'_>) -> Result<Option<(RankVariables, Option<SlurmStep>)>> {
    let step = SlurmStep::read(get)?;
    let mut sets = RankVariables::all(get)?.into_iter().chain(step.as_ref().map(SlurmStep::set));
    let Some(mut first) = sets.next() else { return Ok(None) };
    let (agree, differ): (Vec<_>, Vec<_>) = sets.partition(|other| other.agrees_with(&first));
    let around = |set: &&RankVariables| step.as_ref().is_some_and(|step| step.set().agrees_with(set));
    if let Some(other) = differ.iter().find(|other| !around(other)) {
        return Err(first.contradicts(other));
    }
    let step = step.filter(|step| step.set().agrees_with(&first));
    if let (Launcher::Slurm, Some(step)) = (first.launcher, &step) {
        step.check_homogeneous()?;
    }
    first.local = first.local.or_else(|| agree.iter().find_map(|other| other.local));
    Ok(Some((first, step)))
}

/// Returns the rendezvous, on one host, of this user's `job`.
fn local_name(job: &str) -> Rendezvous {
    let user = rustix::process::geteuid().as_raw();
    // The name of a socket has at most 107 bytes.
    match job.len() {
        ..=64 => Rendezvous::Local(format!("hexagram-{user}-{job}")),
        _ => Rendezvous::Local(format!("hexagram-{user}-{:016x}", of_bytes(START, job.bytes()))),
    }
}
