//! An elastic job that a test starts, follows by the lines of its ranks, and disturbs.

use super::program::{FOLDER, STOP};
use crate::harness::{DEADLINE, Ended, Launcher, folder, hexagram, text};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Time between two looks at the output of all launchers.
const POLL: Duration = Duration::from_millis(5);

/// The running job.
pub(super) struct Elastic {
    /// Launcher of node 0.
    pub(super) launcher: Launcher,
    /// Launchers of other nodes.
    pub(super) others: BTreeMap<usize, Launcher>,
    folder: PathBuf,
    /// Process ids by rank, and the ranks that have finished an operation, by generation.
    generations: BTreeMap<u64, (BTreeMap<usize, i32>, usize)>,
    /// Sizes by generation.
    sizes: BTreeMap<u64, usize>,
    /// Errors that ended operations.
    pub(super) errors: Vec<String>,
}

impl Elastic {
    /// Starts `hexagram run` with `options`, for ranks that find the files `switches`.
    pub(super) fn start(name: &str, options: &[&str], switches: &[&str]) -> Self {
        Self::start_by(name, options, switches, "")
    }

    /// Starts ranks that run a shell script first.
    pub(super) fn start_by(name: &str, options: &[&str], switches: &[&str], script: &str) -> Self {
        let folder = folder(name);
        switches.iter().for_each(|switch| fs::write(folder.join(switch), "").unwrap());
        Self::start_in(folder, hexagram(options), script)
    }

    /// Starts the ranks of a launcher with options, which may be that of node 0.
    pub(super) fn start_in(folder: PathBuf, launcher: Command, script: &str) -> Self {
        Elastic {
            launcher: Launcher::start(with_ranks(launcher, script, &folder)),
            others: BTreeMap::new(),
            folder,
            generations: BTreeMap::new(),
            sizes: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// Starts another launcher with options.
    pub(super) fn start_node(&mut self, node: usize, launcher: Command, script: &str) {
        self.others.insert(node, Launcher::start(with_ranks(launcher, script, &self.folder)));
    }

    /// Waits for a generation after `last` of `size` ranks, each of which has finished an operation. Returns its number, and the
    /// process ids by rank.
    pub(super) fn next(&mut self, last: u64, size: usize) -> (u64, Vec<i32>) {
        self.next_with(last, |found| found == size)
    }

    /// Waits for a generation after `last` of any size, as [`Elastic::next`].
    pub(super) fn next_of_any_size(&mut self, last: u64) -> (u64, Vec<i32>) {
        self.next_with(last, |_| true)
    }

    fn next_with(&mut self, last: u64, fits: impl Fn(usize) -> bool) -> (u64, Vec<i32>) {
        let until = Instant::now() + DEADLINE;
        loop {
            let whole = self.generations.iter().rev().find(|(number, (members, reduced))| {
                let size = self.sizes.get(number).copied().unwrap_or_default();
                **number > last && fits(size) && members.len() == size && *reduced == size
            });
            if let Some((number, (members, _))) = whole {
                return (*number, members.values().copied().collect());
            }
            if Instant::now() > until {
                let errors = self.launchers().flat_map(|launcher| launcher.stderr.try_iter());
                let errors: Vec<_> = errors.map(text).collect();
                panic!("no generation after {last}: {:?}, {errors:#?}", self.generations.last_key_value());
            }
            if let Ok(line) = self.launcher.stdout.recv_timeout(POLL) {
                self.read(&text(line));
            }
            self.read_arrived();
        }
    }

    fn launchers(&self) -> impl Iterator<Item = &Launcher> {
        [&self.launcher].into_iter().chain(self.others.values())
    }

    /// Reads the lines that have arrived.
    pub(super) fn read_arrived(&mut self) {
        let lines: Vec<_> = self.launchers().flat_map(|launcher| launcher.stdout.try_iter()).collect();
        lines.into_iter().for_each(|line| self.read(&text(line)));
    }

    fn read(&mut self, line: &str) {
        let without_prefix = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        let words: Vec<&str> = without_prefix.map_or(line, |(_, line)| line).split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[..] {
            ["@", "joined", ..] => {
                let members = self.generations.entry(number(2)).or_default();
                members.0.insert(number(3) as usize, number(5) as i32);
                self.sizes.insert(number(2), number(4) as usize);
            }
            ["@", "reduced", ..] => self.generations.entry(number(2)).or_default().1 += 1,
            ["@", "ended", ..] => self.errors.push(words[4..].join(" ")),
            _ => {}
        }
    }

    /// Creates a file that the ranks find.
    pub(super) fn write(&self, name: &str) {
        fs::write(self.folder.join(name), "").unwrap();
    }

    /// Ends all ranks with success, and returns the end of the launcher. Those of other nodes succeed, too.
    pub(super) fn stop(self) -> Ended {
        self.write(STOP);
        let ended = self.launcher.finish();
        for other in self.others.into_values().map(Launcher::finish) {
            assert_eq!(other.code, Some(0), "{:?}", other.stderr);
        }
        let _ = fs::remove_dir_all(&self.folder);
        ended
    }
}

/// Adds ranks that run a shell script first, and are controlled by files of a folder.
fn with_ranks(mut launcher: Command, script: &str, folder: &Path) -> Command {
    let script = format!("{script} exec \"$0\" --exact elastic::one_rank --ignored --nocapture");
    if !launcher.get_args().any(|argument| argument == "--log-dir") {
        launcher.arg("--no-prefix");
    }
    launcher.args(["--", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
    launcher.env(FOLDER, folder);
    launcher
}

/// Sends a signal to a rank, and returns the time.
pub(super) fn signal(pid: i32, signal: Signal) -> Instant {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    Instant::now()
}

/// Prints a measured time even if the output of the test is captured.
pub(super) fn report(what: &str, took: Duration) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{what}: {took:.1?}");
}
