//! Starts the `hexagram` program and reads its output; every wait is for an event, with a deadline.
//!
//! A pipe reaches its end only when no process holds it any more. Ranks that write to the launcher's own stdout
//! (`--no-prefix`) and outlive it would keep it open, so its end proves that no process is left.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Only a hang reaches this limit.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A launcher, killed with its ranks at the end of the test.
pub(crate) struct Launcher {
    pub(crate) process: Child,
    pub(crate) stdout: Receiver<Vec<u8>>,
    pub(crate) stderr: Receiver<Vec<u8>>,
}

/// Exit of a launcher, and the rest of its output.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<String>,
    pub(crate) stderr: Vec<String>,
}

/// `hexagram` with `arguments`, with nothing of the shell around the test: see [`untouched`].
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = untouched(env!("CARGO_BIN_EXE_hexagram"));
    command.args(arguments);
    command
}

/// Starts `program` without the changes of a `nohup`, a background shell, or an outer launcher: no signal is ignored,
/// no variable names a job, and standard input is empty.
fn untouched(program: &str) -> Command {
    const OF_A_JOB: [&str; 6] = ["HEXAGRAM_", "OMPI_", "PMI", "PRTE_", "SLURM_", "MASTER_"];
    const ALONE: [&str; 6] =
        ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RAYON_NUM_THREADS", "OMP_NUM_THREADS"];
    // A shell cannot do this: it keeps ignored signals ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM,PIPE,XFSZ", program]).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if OF_A_JOB.iter().any(|prefix| text.starts_with(prefix)) || ALONE.contains(&&*text) {
            command.env_remove(&name);
        }
    }
    // Open MPI refuses root, which tests may run as.
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    command
}

/// `hexagram run` with `arguments`.
pub(crate) fn hexagram(arguments: &[&str]) -> Command {
    let mut command = program(&["run"]);
    command.args(arguments);
    command
}

/// An empty folder for one test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// `hexagram run` with `options`, each rank running `script`.
pub(crate) fn shell(options: &[&str], script: &str) -> Command {
    let mut command = hexagram(options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// A shell `script` that runs the program as `$0`.
pub(crate) fn wrapped(script: &str) -> Command {
    let mut command = untouched("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_hexagram")]);
    command
}

impl Launcher {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(process.stdout.take().unwrap());
        let stderr = lines(process.stderr.take().unwrap());
        Launcher { process, stdout, stderr }
    }

    /// The next line on stdout.
    pub(crate) fn line(&self) -> String {
        text(self.stdout.recv_timeout(DEADLINE).expect("a line before the deadline"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until every holder has closed both streams.
    pub(crate) fn finish(mut self) -> Ended {
        let stdout = rest(&self.stdout);
        let stderr = rest(&self.stderr);
        Ended { code: self.process.wait().unwrap().code(), stdout, stderr }
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn lines(from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        BufReader::new(from).split(b'\n').map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

/// All lines until the end, for which this waits.
pub(crate) fn rest(lines: &Receiver<Vec<u8>>) -> Vec<String> {
    let deadline = Instant::now() + DEADLINE;
    let mut rest = Vec::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => rest.push(text(line)),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return rest,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                panic!("still open at the deadline, after {rest:?}")
            }
        }
    }
}

pub(crate) fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).unwrap()
}

pub(crate) fn run(command: Command) -> Ended {
    Launcher::start(command).finish()
}

/// Output of each rank, by rank.
pub(crate) fn by_rank(stdout: &[String]) -> BTreeMap<usize, Vec<&str>> {
    let mut ranks = BTreeMap::<usize, Vec<&str>>::new();
    for line in stdout {
        let (rank, text) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        ranks.entry(rank.parse().unwrap()).or_default().push(text);
    }
    ranks
}
