//! A job of real processes: this test's own program, started once per rank. Each rank reports on stderr, and every
//! line gets a time stamp on arrival.

use hexagram_logical::TransportKind;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Only a hang reaches this limit.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The role of a rank, by a name in `ranks`.
pub(crate) const ROLE: &str = "HEXAGRAM_TEST_ROLE";
pub(crate) const TRANSPORT: &str = "HEXAGRAM_TEST_TRANSPORT";

/// Processes, killed at the end of the test.
pub(crate) struct Job {
    ranks: Vec<Rank>,
}

struct Rank {
    process: Child,
    said: Receiver<(Instant, String)>,
    /// Everything so far, for when something goes wrong.
    log: Vec<String>,
}

/// The end of a rank: the culprit that it named, the time, and the text.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) culprit: Option<usize>,
    pub(crate) at: Instant,
    pub(crate) text: String,
}

/// A number that no two calls share by more than chance.
pub(crate) fn random(below: usize) -> usize {
    RandomState::new().hash_one(0) as usize % below
}

/// The commands of `size` ranks that meet on this host at a unique name.
pub(crate) fn on_this_host(size: usize) -> impl Iterator<Item = Command> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = u64::from(std::process::id()) << 32 | u64::from(JOBS.fetch_add(1, Ordering::Relaxed));
    (0..size).map(move |rank| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env("OMPI_MCA_ess_base_jobid", job.to_string());
        for (name, value) in [("RANK", rank), ("SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_SIZE", size)] {
            command.env(format!("OMPI_COMM_WORLD_{name}"), value.to_string());
        }
        command
    })
}

impl Job {
    /// Starts `size` ranks on this host.
    pub(crate) fn start(role: &str, transport: TransportKind, size: usize) -> Self {
        Job::of(on_this_host(size), role, transport)
    }

    /// Starts one rank by each command; the command contains the meeting point.
    pub(crate) fn of(commands: impl Iterator<Item = Command>, role: &str, transport: TransportKind) -> Self {
        let start = |mut command: Command| {
            command.args(["--exact", "processes::one_rank", "--ignored", "--nocapture"]);
            command.env(ROLE, role).env(TRANSPORT, transport.to_string());
            let mut process =
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let (sender, said) = channel();
            let stderr = BufReader::new(process.stderr.take().unwrap());
            thread::spawn(move || {
                stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send((Instant::now(), line)))
            });
            Rank { process, said, log: Vec::new() }
        };
        Job { ranks: commands.map(start).collect() }
    }

    /// Waits until `rank` prints a line with `what` in it.
    pub(crate) fn hears(&mut self, rank: usize, what: &str) -> (Instant, String) {
        let deadline = Instant::now() + DEADLINE;
        let Rank { said, log, .. } = &mut self.ranks[rank];
        loop {
            match said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((at, line)) => {
                    log.push(line.clone());
                    if line.contains(what) {
                        return (at, line);
                    }
                }
                Err(end) => panic!("rank {rank} never said `{what}` ({end}), but: {log:#?}"),
            }
        }
    }

    /// Warnings of `rank` received so far.
    pub(crate) fn warnings(&self, rank: usize) -> usize {
        self.ranks[rank].log.iter().filter(|line| line.contains(" WARN ")).count()
    }

    pub(crate) fn all_hear(&mut self, what: &str) {
        (0..self.ranks.len()).for_each(|rank| drop(self.hears(rank, what)));
    }

    /// Sends a signal; when.
    pub(crate) fn signal(&self, rank: usize, signal: Signal) -> Instant {
        let at = Instant::now();
        kill_process(Pid::from_child(&self.ranks[rank].process), signal).unwrap();
        at
    }

    /// Waits for the error with which `rank` ends.
    pub(crate) fn failure(&mut self, rank: usize) -> Failed {
        let (at, line) = self.hears(rank, "failed: ");
        let (_, words) = line.split_once("failed: ").unwrap();
        let (culprit, text) = words.split_once(' ').unwrap();
        Failed { culprit: culprit.parse().ok(), at, text: text.to_owned() }
    }

    /// Whether every process has ended without a signal, or does so soon.
    pub(crate) fn ends(mut self) {
        let deadline = Instant::now() + DEADLINE;
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            while rank.process.try_wait().unwrap().is_none() {
                assert!(Instant::now() < deadline, "rank {number} does not end: {:#?}", rank.log);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.process.kill();
            let _ = rank.process.wait();
        }
    }
}
