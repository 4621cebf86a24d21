//! The rendezvous, from the variables of each launcher.
//!
//! `HEXAGRAM_ADDR` always wins. torchrun provides an address. Other launchers identify the job, directly or
//! indirectly. On one host, that gives a name that only this job has; between hosts, only Slurm names a host.

use super::ranks::RankVariables;
use super::slurm::SlurmStep;
use super::{Launcher, Lookup, local_name};
use crate::bootstrap::{Inherited, Rendezvous};
use crate::error::{Error, Result};
use rustix::net::sockopt;
use std::collections::HashSet;
use std::os::fd::{BorrowedFd, RawFd};

/// Returns the rendezvous of the job that `set` describes. `step` is the Slurm step that numbers its ranks in the same
/// way.
pub(super) fn rendezvous(
    set: &RankVariables,
    step: Option<&SlurmStep>,
    get: Lookup<'_>,
) -> Result<Rendezvous> {
    let RankVariables { launcher, rank, size, .. } = *set;
    if let Some(address) = get("HEXAGRAM_ADDR") {
        let (host, port) = host_and_port("HEXAGRAM_ADDR", &address)?;
        return match inherited(get)? {
            Some(descriptors) if launcher == Launcher::Hexagram && rank == 0 => {
                Ok(Rendezvous::Inherited(Inherited::new(descriptors, host, port)))
            }
            _ => Ok(Rendezvous::Tcp { host, port, agent: false }),
        };
    }
    match launcher {
        _ if size == 1 => Ok(Rendezvous::Local(format!("hexagram-alone-{}", std::process::id()))),
        // Variables never contain a store.
        Launcher::Hexagram | Launcher::Store => {
            Err(missing("HEXAGRAM_RANK and HEXAGRAM_SIZE", "HEXAGRAM_ADDR=host:port"))
        }
        Launcher::Torchrun => torchrun(get),
        Launcher::OpenMpi
        | Launcher::Pmi
        | Launcher::Pmix
        | Launcher::Mvapich
        | Launcher::Flux
        | Launcher::Jsm
        | Launcher::Slurm => {
            let on_one_host = set.is_on_one_host();
            match (job(launcher, get).filter(|_| on_one_host), step) {
                (Some(job), _) => Ok(local_name(&job)),
                (None, Some(step)) => step.rendezvous(),
                (None, None) => Err(nowhere(launcher, on_one_host)),
            }
        }
    }
}

/// Returns the sockets that the launcher has left open for rank 0: distinct numbers, separated by commas.
fn inherited(get: Lookup<'_>) -> Result<Option<Vec<RawFd>>> {
    let Some(text) = get("HEXAGRAM_LISTEN_FD") else { return Ok(None) };
    let numbers: Option<Vec<RawFd>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let distinct = |numbers: &Vec<RawFd>| numbers.iter().collect::<HashSet<_>>().len() == numbers.len();
    numbers.filter(distinct).map(Some).ok_or_else(|| {
        let what = format!("HEXAGRAM_LISTEN_FD={text} is not a list of descriptors");
        Error::setup(what, "unset it; only a launcher sets it")
    })
}

/// Returns the rendezvous of torchrun's variables.
fn torchrun(get: Lookup<'_>) -> Result<Rendezvous> {
    let set = "RANK and WORLD_SIZE";
    let host = get("MASTER_ADDR").ok_or_else(|| missing(set, "MASTER_ADDR"))?;
    let port = get("MASTER_PORT").ok_or_else(|| missing(set, "MASTER_PORT"))?;
    // The agent of torchrun announces itself; it may keep the port for its own store.
    let agent = get("TORCHELASTIC_RUN_ID").is_some();
    let port = parse_port("MASTER_PORT", &port)?;
    if agent && port == u16::MAX {
        let what = format!("MASTER_PORT={port} is the last port, and the torchrun agent may occupy it");
        return Err(Error::setup(what, "choose a lower port, so that the ranks can use the next one"));
    }
    Ok(Rendezvous::Tcp { host, port, agent })
}

/// Returns an identifier of this job among all jobs of this user on this host.
fn job(launcher: Launcher, get: Lookup<'_>) -> Option<String> {
    match launcher {
        Launcher::OpenMpi => get("OMPI_MCA_ess_base_jobid").or_else(|| get("PMIX_NAMESPACE")),
        Launcher::Pmix | Launcher::Jsm => get("PMIX_NAMESPACE"),
        Launcher::Flux => get("FLUX_JOB_ID").map(|job| format!("flux-{job}")),
        Launcher::Pmi | Launcher::Mvapich => {
            let manager = get("PMI_FD").and_then(|text| process_manager(text.trim().parse().ok()?));
            manager.map(|pid| format!("pmi-{pid}")).or_else(|| get("PMI_PORT").map(|at| format!("pmi-{at}")))
        }
        Launcher::Hexagram | Launcher::Torchrun | Launcher::Slurm | Launcher::Store => None,
    }
}

/// Returns the process at the other end of the socket that PMI opens for each rank. It is the same for all ranks of a
/// job on a host, with any wrappers in between.
fn process_manager(descriptor: RawFd) -> Option<i32> {
    if descriptor < 0 {
        return None;
    }
    // SAFETY: not -1, and borrowed only to ask the system about it; a closed descriptor fails with EBADF.
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    sockopt::socket_peercred(socket).ok().map(|peer| peer.pid.as_raw_nonzero().get())
}

/// Creates the error for a launcher whose variables contain no rendezvous.
fn nowhere(launcher: Launcher, on_one_host: bool) -> Error {
    let what = if on_one_host {
        format!(
            "{launcher} variables do not identify the job, so that its ranks cannot distinguish it from others"
        )
    } else {
        format!(
            "{launcher} variables describe several hosts, but contain no address for the rendezvous of the ranks"
        )
    };
    Error::setup(what, how_to_choose(launcher, false))
}

/// Returns the remedy by which the user of this launcher chooses a different rendezvous. `is_chosen` is set if
/// HEXAGRAM_ADDR chose this one.
pub(super) fn how_to_choose(launcher: Launcher, is_chosen: bool) -> &'static str {
    match launcher {
        _ if is_chosen => "set a different port in HEXAGRAM_ADDR, for all ranks",
        Launcher::Torchrun => "choose a different MASTER_PORT, for all ranks",
        Launcher::OpenMpi | Launcher::Pmix => {
            "start it with mpirun -x HEXAGRAM_ADDR=host:port, with the host of rank 0 and a free port there"
        }
        Launcher::Pmi => {
            "start it with mpiexec -genv HEXAGRAM_ADDR host:port, with the host of rank 0 and a free port there"
        }
        _ => "set HEXAGRAM_ADDR=host:port for all ranks, with the host of rank 0 and a free port there",
    }
}

/// Creates the error for a set without an address.
fn missing(present: &str, absent: &str) -> Error {
    Error::setup(
        format!("{present} are set, but {absent} is not, so that the ranks have no rendezvous"),
        format!("set {absent}, the address of the host of rank 0"),
    )
}

/// Splits the address in `name` into host and port.
///
/// # Errors
/// [`Error::Setup`] if it is malformed.
pub fn host_and_port(name: &str, address: &str) -> Result<(String, u16)> {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && (host.starts_with('[') || !host.contains(':')) => {
            Ok((host.to_owned(), parse_port(name, port)?))
        }
        _ => Err(Error::setup(
            format!("{name}={address} is not an address"),
            "write it as host:port, for example 10.0.0.1:29400 or [::1]:29400",
        )),
    }
}

/// Decodes the port in `name`.
fn parse_port(name: &str, text: &str) -> Result<u16> {
    match text.trim().parse() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Error::setup(format!("{name}: `{text}` is not a port"), "use a number from 1 to 65535")),
    }
}
