//! Which rank is this? Read from the variables that launchers set.
//!
//! Sets are tried in this order: hexagram's own, torchrun's, Open MPI's. The first complete one wins; a later set that
//! says something else is mentioned; a set that contradicts itself is refused, whichever set wins.

use super::meeting::{Inherited, Meeting};
use crate::error::{Error, Result};
use std::fmt;
use std::fs;

/// Who started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `hexagram run`, or anyone who sets its variables.
    Hexagram,
    /// torchrun, or anyone who sets its variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Hexagram => "HEXAGRAM_*",
            Launcher::Torchrun => "torchrun's",
            Launcher::OpenMpi => "Open MPI's",
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
    pub meeting: Meeting,
    /// What proves that a process belongs to the job; empty if the job has none.
    pub secret: Vec<u8>,
    /// Whose variables said so.
    pub launcher: Launcher,
}

/// Most ranks of one job.
const MAX_SIZE: usize = 1 << 16;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Placement {
    /// Reads the environment; `None` if no launcher set it.
    ///
    /// # Errors
    /// [`Error::Setup`] if a set is malformed, contradicts itself, or lacks what it needs.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_lookup(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    pub(super) fn from_lookup(get: Lookup<'_>) -> Result<Option<Self>> {
        let sets = [Set::hexagram(get)?, Set::torchrun(get)?, Set::open_mpi(get)?];
        let mut sets = sets.into_iter().flatten();
        let Some(first) = sets.next() else { return Ok(None) };
        for other in sets.filter(|other| (other.rank, other.size) != (first.rank, first.size)) {
            tracing::warn!(
                "{} variables say rank {} of {}; {} variables say rank {} of {} and win",
                other.launcher,
                other.rank,
                other.size,
                first.launcher,
                first.rank,
                first.size
            );
        }
        let placement = first.place(get)?;
        let Placement { rank, size, meeting, launcher, .. } = &placement;
        tracing::info!("rank {rank} of {size}, meeting at {meeting}, from {launcher} variables");
        Ok(Some(placement))
    }
}

/// One launcher's variables, checked for contradictions but not yet for an address.
struct Set {
    launcher: Launcher,
    rank: usize,
    size: usize,
    local: Option<(usize, usize)>,
}

/// Names of one launcher's variables: rank, size, local rank, local size.
struct Names(Launcher, [&'static str; 4]);

impl Set {
    fn hexagram(get: Lookup<'_>) -> Result<Option<Self>> {
        let names = ["HEXAGRAM_RANK", "HEXAGRAM_SIZE", "HEXAGRAM_LOCAL_RANK", "HEXAGRAM_LOCAL_SIZE"];
        Self::read(Names(Launcher::Hexagram, names), get)
    }

    fn torchrun(get: Lookup<'_>) -> Result<Option<Self>> {
        Self::read(Names(Launcher::Torchrun, ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]), get)
    }

    fn open_mpi(get: Lookup<'_>) -> Result<Option<Self>> {
        let names = [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ];
        Self::read(Names(Launcher::OpenMpi, names), get)
    }

    fn read(Names(launcher, names): Names, get: Lookup<'_>) -> Result<Option<Self>> {
        let [rank, size, local_rank, local_size] = names.map(|name| number(name, get));
        let (rank, size, local_rank, local_size) = (rank?, size?, local_rank?, local_size?);
        below(names[0], rank, names[1], size)?;
        below(names[2], local_rank, names[3], local_size)?;
        below(names[2], local_rank, names[1], size)?;
        if let (Some(local), Some(whole)) = (local_size, size)
            && (local > whole || local == 0)
        {
            return Err(contradiction(names[3], local, names[1], whole));
        }
        let (Some(rank), Some(size)) = (rank, size) else {
            if rank.is_some() || size.is_some() {
                tracing::warn!("{} and {} are not both set; both are ignored", names[0], names[1]);
            }
            return Ok(None);
        };
        if size > MAX_SIZE {
            let what = format!("{}={size} is beyond any cluster", names[1]);
            return Err(Error::setup(what, format!("use at most {MAX_SIZE} ranks")));
        }
        Ok(Some(Set { launcher, rank, size, local: local_rank.zip(local_size) }))
    }

    fn place(self, get: Lookup<'_>) -> Result<Placement> {
        let meeting = self.meeting(get)?;
        let secret = get("HEXAGRAM_SECRET_FILE").map_or_else(|| Ok(Vec::new()), |path| read_secret(&path))?;
        let Set { launcher, rank, size, local } = self;
        let (local_rank, local_size) = local.unwrap_or((rank, size));
        Ok(Placement { rank, size, local_rank, local_size, meeting, secret, launcher })
    }

    fn meeting(&self, get: Lookup<'_>) -> Result<Meeting> {
        let Set { launcher, rank, size, local } = self;
        if let Some(address) = get("HEXAGRAM_ADDR") {
            let (host, port) = host_and_port(&address)?;
            let descriptor = number("HEXAGRAM_LISTEN_FD", get)?.map(i32::try_from);
            return match descriptor {
                Some(Ok(descriptor)) if *launcher == Launcher::Hexagram && *rank == 0 => {
                    Ok(Meeting::Inherited(Inherited::new(descriptor, host, port)))
                }
                _ => Ok(Meeting::Tcp { host, port, agent: false }),
            };
        }
        match launcher {
            _ if *size == 1 => Ok(Meeting::Local(format!("hexagram-alone-{}", std::process::id()))),
            Launcher::Hexagram => Err(missing("HEXAGRAM_RANK and HEXAGRAM_SIZE", "HEXAGRAM_ADDR=host:port")),
            Launcher::Torchrun => {
                let set = "RANK and WORLD_SIZE";
                let host = get("MASTER_ADDR").ok_or_else(|| missing(set, "MASTER_ADDR"))?;
                let port = get("MASTER_PORT").ok_or_else(|| missing(set, "MASTER_PORT"))?;
                // torchrun's agent says that it is there; it may keep the port for its own store.
                let agent = get("TORCHELASTIC_RUN_ID").is_some();
                Ok(Meeting::Tcp { host, port: parse_port("MASTER_PORT", &port)?, agent })
            }
            Launcher::OpenMpi if local.is_some_and(|(_, local_size)| local_size == *size) => {
                let job = get("OMPI_MCA_ess_base_jobid").or_else(|| get("PMIX_NAMESPACE"));
                let job = job.ok_or_else(|| missing("OMPI_COMM_WORLD_*", "HEXAGRAM_ADDR=host:port"))?;
                let user = rustix::process::geteuid().as_raw();
                Ok(Meeting::Local(format!("hexagram-{user}-{job}")))
            }
            Launcher::OpenMpi => Err(Error::setup(
                "mpirun started ranks on several hosts, and gives no address at which they could meet",
                "start it with -x HEXAGRAM_ADDR=host:port, naming the host of rank 0 and a free port there",
            )),
        }
    }
}

fn read_secret(path: &str) -> Result<Vec<u8>> {
    let secret = fs::read(path).map_err(|cause| {
        let doing = format!("read the job's secret from {path} (HEXAGRAM_SECRET_FILE)");
        Error::system(doing, cause, "give the path of a file that this user can read")
    })?;
    if secret.is_empty() {
        let what = format!("the job's secret in {path} (HEXAGRAM_SECRET_FILE) is empty");
        return Err(Error::setup(what, "write some random bytes into it, the same for all ranks"));
    }
    Ok(secret)
}

fn number(name: &str, get: Lookup<'_>) -> Result<Option<usize>> {
    let Some(text) = get(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::setup(
            format!("{name}={text} is not a number"),
            format!("set {name} to a whole number, or unset it"),
        )),
    }
}

/// Refuses `low >= high` where both are set.
fn below(low: &str, low_value: Option<usize>, high: &str, high_value: Option<usize>) -> Result<()> {
    match (low_value, high_value) {
        (Some(value), Some(bound)) if value >= bound => Err(contradiction(low, value, high, bound)),
        _ => Ok(()),
    }
}

fn contradiction(one: &str, value: usize, other: &str, bound: usize) -> Error {
    let what = format!("{one}={value} contradicts {other}={bound}");
    Error::setup(what, "ranks count from 0 to size - 1; correct or unset these variables")
}

fn missing(present: &str, absent: &str) -> Error {
    Error::setup(
        format!("{present} are set, but {absent} is not, so the ranks cannot meet"),
        format!("set {absent}, the address of rank 0's host"),
    )
}

fn host_and_port(address: &str) -> Result<(String, u16)> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && (host.starts_with('[') || !host.contains(':')) => {
            Ok((host.to_owned(), parse_port("HEXAGRAM_ADDR", port)?))
        }
        _ => Err(Error::setup(
            format!("HEXAGRAM_ADDR={address} is not an address"),
            "write it as host:port, for example 10.0.0.1:29400 or [::1]:29400",
        )),
    }
}

fn parse_port(name: &str, text: &str) -> Result<u16> {
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::setup(format!("{name}: `{text}` is not a port"), "use a number from 1 to 65535")),
    }
}
