//! Slurm variables. They identify a rank only inside a step that `srun` started: the script of a batch job has most
//! of them, but is not a rank.
//!
//! ```text
//! SLURM_STEP_ID                  a number: this is a step. Absent in a batch script, or one of Slurm's own numbers
//! SLURM_PROCID, SLURM_LOCALID    rank, and rank on this host
//! SLURM_STEP_NUM_TASKS           size; else SLURM_NTASKS
//! SLURM_STEP_TASKS_PER_NODE      tasks by host, 2(x3),1 for 2,2,2,1; else SLURM_TASKS_PER_NODE
//! SLURM_NODEID                   number of this host among those
//! SLURM_NTASKS_PER_NODE          tasks on each host, if those are missing
//! SLURM_STEP_NODELIST            names of the hosts, node[01-03,07],other; else SLURM_JOB_NODELIST
//! ```
//!
//! Under `--distribution=arbitrary`, srun does not order ranks by hosts; set HEXAGRAM_ADDR then.

use super::ranks::{RankVariables, below, number, plausible};
use super::{Launcher, Lookup, local_name};
use crate::bootstrap::Rendezvous;
use crate::error::{Error, Result};

/// Lowest step id that Slurm reserves: for batch scripts, interactive steps, and steps that have not started.
const OWN_STEPS: u32 = 0xffff_fff0;

/// Lowest port at which steps on several hosts rendezvous. The highest is 32767, below the ports that systems assign.
const FIRST_PORT: u64 = 20480;
/// Number of those ports.
const PORTS: u64 = 12288;
/// Number of steps of a job that have distinct ports. `PORTS / STEPS` consecutive jobs have distinct ports.
const STEPS: u64 = 16;

/// Step of a Slurm job, as one of its tasks sees it.
pub(super) struct SlurmStep {
    /// Rank of the task.
    pub(super) rank: usize,
    /// Number of tasks.
    pub(super) size: usize,
    /// Rank and number of tasks on this host, if both are known.
    pub(super) local: Option<(usize, usize)>,
    /// Job id.
    job: u64,
    /// Step id.
    step: u32,
    /// List of host names, not expanded.
    hosts: Option<String>,
    /// Number of components of the job; above 1 it is heterogeneous.
    components: usize,
}

impl SlurmStep {
    /// Reads the variables of a step. Returns `None` outside a step.
    pub(super) fn read(get: Lookup<'_>) -> Result<Option<Self>> {
        let step = get("SLURM_STEP_ID").and_then(|text| text.trim().parse().ok());
        let Some(step) = step.filter(|step| *step < OWN_STEPS) else { return Ok(None) };
        let Some(rank) = number("SLURM_PROCID", get)? else { return Ok(None) };
        let Some((name, size)) = first(["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], get)? else {
            tracing::warn!("SLURM_PROCID is set, but not SLURM_NTASKS; Slurm's variables are ignored");
            return Ok(None);
        };
        below("SLURM_PROCID", Some(rank), name, Some(size))?;
        plausible(name, size)?;
        let (_, job) = first(["SLURM_JOB_ID", "SLURM_JOBID"], get)?.ok_or_else(|| {
            Error::setup("SLURM_PROCID is set, but SLURM_JOB_ID is not", "start it with srun")
        })?;
        let local = local(size, get)?;
        let components = number("SLURM_HET_SIZE", get)?.unwrap_or(1);
        let hosts = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
        Ok(Some(SlurmStep { rank, size, local, job: job as u64, step, hosts, components }))
    }

    /// Refuses a step of a heterogeneous job, whose components number their ranks separately.
    ///
    /// # Errors
    /// [`Error::Setup`] with the name of the variable.
    pub(super) fn check_homogeneous(&self) -> Result<()> {
        if self.components <= 1 {
            return Ok(());
        }
        let what =
            format!("SLURM_HET_SIZE={}: each component of this job counts its own ranks", self.components);
        let remedy =
            "submit one component, or set HEXAGRAM_RANK, HEXAGRAM_SIZE and HEXAGRAM_ADDR for all ranks";
        Err(Error::setup(what, remedy))
    }

    /// Returns the numbers of the step as a set of variables.
    pub(super) fn set(&self) -> RankVariables {
        RankVariables { launcher: Launcher::Slurm, rank: self.rank, size: self.size, local: self.local }
    }

    /// Returns the rendezvous of the tasks: on one host a name that no other step has, otherwise an address of the
    /// first host.
    pub(super) fn rendezvous(&self) -> Result<Rendezvous> {
        let SlurmStep { job, step, .. } = self;
        if self.local.is_some_and(|(_, on_this_host)| on_this_host == self.size) {
            return Ok(local_name(&format!("slurm-{job}.{step}")));
        }
        let hosts = self.hosts.as_deref().unwrap_or_default();
        let host = first_host(hosts).ok_or_else(|| {
            let what = format!(
                "SLURM_JOB_NODELIST=`{hosts}` contains no first host for the rendezvous of the ranks"
            );
            Error::setup(what, "set HEXAGRAM_ADDR=host:port, with the host of rank 0 and a free port there")
        })?;
        Ok(Rendezvous::Tcp { host, port: self.port(), agent: false })
    }

    /// Returns a port that no other step has, among those of 768 consecutive jobs with up to 16 steps each.
    fn port(&self) -> u16 {
        let place = self.job.wrapping_mul(STEPS).wrapping_add(self.step.into()) % PORTS;
        u16::try_from(FIRST_PORT + place).unwrap_or(u16::MAX)
    }
}

/// Returns the first of several variables that is set.
fn first<const N: usize>(names: [&'static str; N], get: Lookup<'_>) -> Result<Option<(&'static str, usize)>> {
    let numbered = |name| number(name, get).map(|found| found.map(|number| (name, number))).transpose();
    names.into_iter().find_map(numbered).transpose()
}

/// Returns rank and number of tasks on this host. Options of sbatch stay set in a smaller step, so that a number that
/// is too large counts as unset.
fn local(size: usize, get: Lookup<'_>) -> Result<Option<(usize, usize)>> {
    let Some(rank) = number("SLURM_LOCALID", get)? else { return Ok(None) };
    let node = number("SLURM_NODEID", get)?.unwrap_or(0);
    let by_node = |name| get(name).and_then(|text| tasks_on(&text, node));
    let tasks = match by_node("SLURM_STEP_TASKS_PER_NODE").or_else(|| by_node("SLURM_TASKS_PER_NODE")) {
        Some(tasks) => Some(tasks),
        None => number("SLURM_NTASKS_PER_NODE", get)?,
    };
    let nodes = first(["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"], get)?;
    let alone = nodes.is_some_and(|(_, nodes)| nodes == 1).then_some(size);
    Ok(tasks.filter(|tasks| (rank + 1..=size).contains(tasks)).or(alone).map(|tasks| (rank, tasks)))
}

/// Returns the number of tasks on the host with number `node`, from a list such as `2(x3),1`.
fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut hosts = 0usize;
    for part in list.split(',') {
        let (tasks, times) = match part.trim().split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1),
        };
        let tasks = tasks.parse().ok()?;
        hosts = hosts.checked_add(times)?;
        if node < hosts {
            return Some(tasks);
        }
    }
    None
}

/// Returns the first host of a list such as `rack[1-2]node[01-03,07],other`. Every bracket stands for its first number.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        let Some(bracket) = rest[end..].strip_prefix('[') else { break };
        let (numbers, after) = bracket.split_once(']')?;
        let number = numbers.split([',', '-']).next()?;
        if number.is_empty() || !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        host.push_str(number);
        rest = after;
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    (!host.is_empty() && host.bytes().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("alone", "alone"),
            ("a,b,c", "a"),
            ("node[01-03,07],other", "node01"),
            ("node[7,9-12]", "node7"),
            ("node[001-128]-ib.cluster,login", "node001-ib.cluster"),
            ("rack[1-2]node[03-04]", "rack1node03"),
            (" tux3 ", "tux3"),
            ("[0-3]", "0"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", ",", "node[", "node[]", "node[a-b]", "node[1-2", "no]de", "a b", "(null)"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn tasks_of_each_host() {
        for (list, tasks) in [("4", vec![4]), ("2(x3),1", vec![2, 2, 2, 1]), ("1,3,2(x2)", vec![1, 3, 2, 2])]
        {
            for (node, tasks) in tasks.iter().enumerate() {
                assert_eq!(tasks_on(list, node), Some(*tasks), "{list} {node}");
            }
            assert_eq!(tasks_on(list, tasks.len()), None, "{list}");
        }
        for list in ["", "x", "2(x", "2(3)", "(x2)", "2(x99999999999999999999)"] {
            assert_eq!(tasks_on(list, 0), None, "{list}");
        }
    }

    #[test]
    fn ports_differ_between_steps_and_between_jobs() {
        let step = |job, step| {
            SlurmStep { rank: 0, size: 2, local: None, job, step, hosts: None, components: 1 }.port()
        };
        let mut seen = std::collections::HashSet::new();
        for job in 4_000_000..4_000_768 {
            assert!((0..16).all(|number| seen.insert(step(job, number))), "{job}");
        }
        assert_eq!(seen.iter().min().zip(seen.iter().max()), Some((&20480, &32767)));
        assert!((20480..32768).contains(&step(u64::MAX, u32::MAX)));
    }
}
