//! Numbers of one launcher, parsed and checked.

use super::{Launcher, Lookup};
use crate::error::{Error, Result};
use crate::system::environment::variable;
use std::fmt;

/// Largest number of ranks of one job.
pub const MAX_SIZE: usize = 1 << 16;

/// Names of the variables with rank, size, local rank and local size of each launcher, in the order in which they are
/// tried. Slurm has several names for each, and is read by [`slurm`](super::slurm).
const NAMES: [(Launcher, [&str; 4]); 8] = [
    (Launcher::Hexagram, ["HEXAGRAM_RANK", "HEXAGRAM_SIZE", "HEXAGRAM_LOCAL_RANK", "HEXAGRAM_LOCAL_SIZE"]),
    (Launcher::Torchrun, ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
    (Launcher::OpenMpi, ["OMPI_COMM_WORLD_RANK", OMPI_SIZE, OMPI_LOCAL_RANK, OMPI_LOCAL_SIZE]),
    (Launcher::Pmi, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // PMIx itself has no variable for the size.
    (Launcher::Pmix, ["PMIX_RANK", OMPI_SIZE, OMPI_LOCAL_RANK, OMPI_LOCAL_SIZE]),
    (
        Launcher::Mvapich,
        [
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE",
        ],
    ),
    // Flux has no variable for the number of ranks on a host.
    (Launcher::Flux, ["FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_SIZE"]),
    (
        Launcher::Jsm,
        ["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"],
    ),
];
/// Names of Slurm's variables, for errors.
const SLURM: [&str; 4] = ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"];
/// Name of Open MPI's variable with the number of ranks.
const OMPI_SIZE: &str = "OMPI_COMM_WORLD_SIZE";
/// Name of Open MPI's variable with the rank on this host.
const OMPI_LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
/// Name of Open MPI's variable with the number of ranks on this host.
const OMPI_LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";

/// Returns the variables with which launchers number their ranks and set their rendezvous. If inherited from a
/// surrounding job, they would contradict its own.
pub fn of_launchers() -> impl Iterator<Item = &'static str> {
    let of_meeting =
        ["HEXAGRAM_ADDR", "HEXAGRAM_MEMBERSHIP_FD", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID"];
    NAMES.into_iter().flat_map(|(_, names)| names).chain(of_meeting)
}

/// Variables with the rank, from launchers whose other variables this library does not read: Cray PALS, which also sets the
/// variables of PMI, and Cray ALPS.
const UNREAD: [&str; 2] = ["PALS_RANKID", "ALPS_APP_PE"];

/// Warns if a launcher has given this process a rank, although it starts a job of `ranks` ranks, since the other processes of
/// the launcher do the same. The rank of Slurm does not count, since batch scripts also have one. RANK does not count either,
/// since users set it by hand.
pub fn warn_of_rank_given(ranks: usize) {
    let names = NAMES.into_iter().map(|(_, [rank, ..])| rank).filter(|rank| *rank != "RANK");
    if let Some((name, value)) = names.chain(UNREAD).find_map(|name| Some((name, variable(name)?))) {
        tracing::warn!(
            "{name}={value}: each process of the other launcher starts a job of {ranks} ranks; start the \
             ranks with one of the two launchers"
        );
    }
}

/// Numbers of one launcher, free of contradictions.
pub(super) struct RankVariables {
    /// Launcher that set them.
    pub(super) launcher: Launcher,
    /// This rank.
    pub(super) rank: usize,
    /// Number of ranks.
    pub(super) size: usize,
    /// Rank and number of ranks on this host, if both are known.
    pub(super) local: Option<(usize, usize)>,
}

impl RankVariables {
    /// Reads the complete sets of all launchers except Slurm, in order.
    pub(super) fn all(get: Lookup<'_>) -> Result<Vec<Self>> {
        let read = |(launcher, names)| Self::read(launcher, names, get);
        NAMES.into_iter().map(read).filter_map(Result::transpose).collect()
    }

    /// Reads the set of one launcher. Returns `None` if it is incomplete.
    fn read(launcher: Launcher, names: [&str; 4], get: Lookup<'_>) -> Result<Option<Self>> {
        let [rank, size, local_rank, local_size] = names.map(|name| number(name, get));
        let rank = rank?;
        let size = size?;
        let [local_rank, local_size] = match launcher {
            // Process managers other than Hydra use different names.
            Launcher::Pmi => [
                local_rank?.or(number("PMI_LOCAL_RANK", get)?),
                local_size?.or(number("PMI_LOCAL_SIZE", get)?),
            ],
            Launcher::Flux => {
                let on_one_host = number("FLUX_JOB_NNODES", get)? == Some(1);
                [local_rank?, local_size?.filter(|_| on_one_host)]
            }
            _ => [local_rank?, local_size?],
        };
        below(names[0], rank, names[1], size)?;
        below(names[2], local_rank, names[3], local_size)?;
        below(names[2], local_rank, names[1], size)?;
        if let (Some(local), Some(whole)) = (local_size, size)
            && (local > whole || local == 0)
        {
            return Err(contradiction(names[3], local, names[1], whole));
        }
        let (Some(rank), Some(size)) = (rank, size) else {
            // The size of Open MPI alone is not half of a PMIx set, nor is PMIX_RANK alone if the Slurm set is
            // complete.
            if launcher != Launcher::Pmix && (rank.is_some() || size.is_some()) {
                tracing::warn!("{} and {} are not both set; both are ignored", names[0], names[1]);
            }
            return Ok(None);
        };
        plausible(names[1], size)?;
        Ok(Some(RankVariables { launcher, rank, size, local: local_rank.zip(local_size) }))
    }
}

impl RankVariables {
    /// Returns true if all ranks are known to be on this host.
    pub(super) fn is_on_one_host(&self) -> bool {
        self.size == 1 || self.local.is_some_and(|(_, local_size)| local_size == self.size)
    }

    /// Returns true if both sets may describe the same rank.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let local = self.local.zip(other.local).is_none_or(|(ours, theirs)| ours == theirs);
        (self.rank, self.size) == (other.rank, other.size) && local
    }

    /// Creates the error of two sets that contradict each other.
    pub(super) fn contradicts(&self, other: &Self) -> Error {
        let what = format!("{self} contradict {other}");
        Error::setup(what, "unset the variables of the launcher that did not start this process")
    }

    /// Returns the names of the variables with rank, size, local rank and local size.
    fn names(&self) -> [&'static str; 4] {
        let mut all = NAMES.iter();
        all.find(|(launcher, _)| *launcher == self.launcher).map_or(SLURM, |(_, names)| *names)
    }
}

impl fmt::Display for RankVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rank, size, local_rank, local_size] = self.names();
        write!(f, "{rank}={} and {size}={}", self.rank, self.size)?;
        match self.local {
            Some((local, of)) => write!(f, " ({local_rank}={local}, {local_size}={of})"),
            None => Ok(()),
        }
    }
}

/// Refuses a size above [`MAX_SIZE`].
pub(super) fn plausible(name: &str, size: usize) -> Result<()> {
    if size <= MAX_SIZE {
        return Ok(());
    }
    let what = format!("{name}={size} exceeds the maximum");
    Err(Error::setup(what, format!("use at most {MAX_SIZE} ranks")))
}

/// Reads a number. Returns `None` if the variable is not set.
pub(super) fn number(name: &str, get: Lookup<'_>) -> Result<Option<usize>> {
    get(name).map(|text| parse_number(name, &text)).transpose()
}

/// Decodes the number in `name`.
pub(crate) fn parse_number(name: &str, text: &str) -> Result<usize> {
    text.trim().parse().map_err(|_| {
        let remedy = format!("set {name} to a whole number, or unset it");
        Error::setup(format!("{name}={text} is not a number"), remedy)
    })
}

/// Refuses `low >= high` if both are set.
pub(super) fn below(
    low: &str,
    low_value: Option<usize>,
    high: &str,
    high_value: Option<usize>,
) -> Result<()> {
    match (low_value, high_value) {
        (Some(value), Some(bound)) if value >= bound => Err(contradiction(low, value, high, bound)),
        _ => Ok(()),
    }
}

/// Creates the error of two numbers that contradict each other.
fn contradiction(one: &str, value: usize, other: &str, bound: usize) -> Error {
    let what = format!("{one}={value} contradicts {other}={bound}");
    Error::setup(what, "ranks count from 0 to size - 1; correct or unset these variables")
}
