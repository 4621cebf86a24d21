//! The launcher's own process, which a rank does not outlive. Open this to see which process that is under which launcher.
//!
//! A launcher that is killed can end nothing any more. So each rank looks for it among the processes that it descends
//! from, when it joins, and watches it from then on: `hexagram run` leaves its process id in `HEXAGRAM_LAUNCHER`, the
//! others are known by their names. A rank that was started by hand, with a launcher's variables but not by it, descends
//! from none, and ends whenever it likes. So does one that the launcher's death has left to another parent before it
//! joined.

use super::variables::{Launcher, variable};
use crate::process::Process;
use crate::runtime::{self, PollFd, PollFlags};
use rustix::process::{PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Names the processes that have started a rank: each as `pid-number`, the outermost first. The number is nobody else's.
pub(crate) const STARTERS: &str = "HEXAGRAM_LAUNCHER";

/// Programs that start ranks on their host for MPI or Slurm, as far as the system keeps their names.
const PROGRAMS: [&str; 12] = [
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "prte",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "mpispawn",
    "mpirun_rsh",
    "slurmstepd",
];
/// What torchrun is called with, whatever Python is called.
const MODULES: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];

/// A launcher whose end is noticed.
pub(crate) struct Parent {
    process: Process,
    /// Ready once it has ended; none where the system has no such thing.
    held: Option<OwnedFd>,
}

impl Parent {
    /// The process that has started this one as a rank, by the variables of `launcher`.
    pub(crate) fn find(launcher: Launcher) -> Option<Self> {
        let starter = variable(STARTERS).as_deref().and_then(last_pid);
        let is_it = |process: &Process| match launcher {
            Launcher::Hexagram => starter == Some(process.pid.as_raw_nonzero().get()),
            Launcher::Torchrun => is_torchrun(&process.arguments()),
            _ => is_program(&process.name),
        };
        let process = Process::ancestors().find(is_it)?;
        let held = pidfd_open(process.pid, PidfdFlags::empty()).ok();
        // Had it ended in between, the descriptor could be another's.
        (!process.has_ended()).then_some(Parent { process, held })
    }

    /// What becomes of a rank whose launcher has ended, as a verb phrase; `None` while that lives.
    pub(crate) fn end(&self) -> Option<String> {
        let ended = match &self.held {
            Some(held) => {
                let mut source = [PollFd::new(held, PollFlags::IN)];
                runtime::poll(&mut source, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
            }
            None => self.process.has_ended(),
        };
        let Process { name, pid, .. } = &self.process;
        ended.then(|| format!("lost its launcher, {name} (pid {pid}), which has ended"))
    }

    /// What is ready once it has ended.
    pub(crate) fn source(&self) -> Option<&OwnedFd> {
        self.held.as_ref()
    }
}

fn last_pid(starters: &str) -> Option<i32> {
    starters.split_whitespace().last()?.split_once('-')?.0.parse().ok()
}

/// Also as distributions call it, `mpirun.openmpi`.
fn is_program(name: &str) -> bool {
    PROGRAMS.iter().any(|program| {
        name.strip_prefix(program).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn is_torchrun(arguments: &[String]) -> bool {
    let named = |word: &String| word.rsplit('/').next().is_some_and(|name| MODULES.contains(&name));
    // The program itself, or the script or module that Python runs.
    let mut arguments = arguments.iter();
    arguments.next().is_some_and(named) || arguments.find(|word| !word.starts_with('-')).is_some_and(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_their_names_and_nobody_else_is() {
        assert!(
            ["mpirun", "mpirun.openmpi", "orted", "hydra_pmi_proxy", "slurmstepd"]
                .into_iter()
                .all(is_program)
        );
        assert!(!["sh", "mpirunner", "", "my-mpirun"].into_iter().any(is_program));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let torch = [
            "/usr/bin/python3 /opt/bin/torchrun --nproc-per-node 2 train.py",
            "python -m torch.distributed.run x",
        ];
        assert!(torch.into_iter().all(|line| is_torchrun(&words(line))));
        assert!(
            !["bash", "python train.py torchrun torchrun"].into_iter().any(|line| is_torchrun(&words(line)))
        );
    }

    #[test]
    fn the_innermost_launcher_is_the_last() {
        assert_eq!(last_pid("12-ab 345-cd"), Some(345));
        for nonsense in ["", "345", "x-1", " "] {
            assert_eq!(last_pid(nonsense), None);
        }
    }
}
