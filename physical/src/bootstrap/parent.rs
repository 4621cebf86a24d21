//! The process of the launcher, whose end ends its ranks.
//!
//! A killed launcher cannot end its ranks. Therefore each rank looks for the launcher among its ancestors when it
//! joins, and watches it from then on. `hexagram run` leaves its process id in `HEXAGRAM_LAUNCHER`; other launchers
//! are recognized by their names. A rank that was started by hand with launcher variables has no such ancestor, and
//! ends by itself. The same holds for a rank whose launcher ended before it joined.

use super::variables::Launcher;
use crate::runtime::{self, PollFd, PollFlags};
use crate::system::environment::variable;
use crate::system::process::Process;
use rustix::process::{PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Name of the variable with the launchers of a rank, each as `pid-number`, the outermost first. The number is random.
pub const STARTERS: &str = "HEXAGRAM_LAUNCHER";

/// Programs that start ranks of MPI or Slurm on their host, by the 15 bytes of a name that the system keeps.
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
/// Names by which Python runs torchrun.
const MODULES: [&str; 3] = ["torchrun", "torch.distributed.run", "torch.distributed.launch"];

/// The watched process of a launcher.
pub(crate) struct Parent {
    /// The process, as it was found.
    process: Process,
    /// Descriptor that is readable once the process has ended. `None` if the system has no such descriptors.
    held: Option<OwnedFd>,
}

impl Parent {
    /// Returns the ancestor of this process that started it as a rank, by the variables of `launcher`.
    pub(crate) fn find(launcher: Launcher) -> Option<Self> {
        if runtime::is_replaced() {
            // Ranks of a simulated world are not processes.
            return None;
        }
        let starter = last_launcher();
        let is_it = |process: &Process| match launcher {
            Launcher::Hexagram => starter == Some(process.pid.as_raw_nonzero().get()),
            Launcher::Torchrun => is_torchrun(&process.arguments()),
            Launcher::Store => {
                starter == Some(process.pid.as_raw_nonzero().get())
                    || is_program(&process.name)
                    || is_torchrun(&process.arguments())
            }
            _ => is_program(&process.name),
        };
        let process = Process::ancestors().find(is_it)?;
        let held = pidfd_open(process.pid, PidfdFlags::empty()).ok();
        // If it ended in between, the descriptor could belong to another process.
        (!process.has_ended()).then_some(Parent { process, held })
    }

    /// Returns the failure of this rank, as a verb phrase, if the launcher has ended.
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

    /// Returns the descriptor that is readable once the launcher has ended.
    pub(crate) fn source(&self) -> Option<&OwnedFd> {
        self.held.as_ref()
    }
}

/// Returns the process id of the launcher of this library that started this process, if one did.
pub(crate) fn last_launcher() -> Option<i32> {
    variable(STARTERS).as_deref().and_then(last_pid)
}

/// Returns the process id of the innermost launcher.
fn last_pid(starters: &str) -> Option<i32> {
    starters.split_whitespace().last()?.split_once('-')?.0.parse().ok()
}

/// Returns true for a name in [`PROGRAMS`], also with a suffix such as `mpirun.openmpi`.
fn is_program(name: &str) -> bool {
    PROGRAMS.iter().any(|program| {
        name.strip_prefix(program).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Returns true for the command line of torchrun.
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
