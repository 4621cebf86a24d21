//! `hexagram run` with real processes: shell one-liners as ranks, every wait on an event, with a deadline.
//!
//! A pipe reaches its end only when nobody holds it any more. Ranks that write to the launcher's own stdout
//! (`--no-prefix`) and outlive it would keep it open, so that its end proves that no process is left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// No test comes near it unless something hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// A launcher, killed (and its ranks with it) when the test is over.
struct Launcher {
    process: Child,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
}

/// How a launcher ended, and the rest of what it wrote.
struct Ended {
    code: Option<i32>,
    stdout: Vec<String>,
    stderr: Vec<String>,
}

fn hexagram(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hexagram"));
    command.arg("run").args(arguments).env_remove("RAYON_NUM_THREADS");
    command
}

/// `hexagram run` with `options`, each rank running `script`.
fn shell(options: &[&str], script: &str) -> Command {
    let mut command = hexagram(options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// A shell `script` that runs the program as `$0`.
fn wrapped(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_hexagram")]);
    command
}

impl Launcher {
    fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(process.stdout.take().unwrap());
        let stderr = lines(process.stderr.take().unwrap());
        Launcher { process, stdout, stderr }
    }

    /// The next line on stdout.
    fn line(&self) -> String {
        text(self.stdout.recv_timeout(DEADLINE).expect("a line before the deadline"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until both streams are closed by everyone who held them.
    fn finish(mut self) -> Ended {
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

fn lines(from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        BufReader::new(from).split(b'\n').map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

/// All lines until the end, for which this waits.
fn rest(lines: &Receiver<Vec<u8>>) -> Vec<String> {
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

fn text(line: Vec<u8>) -> String {
    String::from_utf8(line).unwrap()
}

fn run(command: Command) -> Ended {
    Launcher::start(command).finish()
}

/// What each rank printed, by rank.
fn by_rank(stdout: &[String]) -> BTreeMap<usize, Vec<&str>> {
    let mut ranks = BTreeMap::<usize, Vec<&str>>::new();
    for line in stdout {
        let (rank, text) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        ranks.entry(rank.parse().unwrap()).or_default().push(text);
    }
    ranks
}

// What ranks are told.

#[test]
fn each_rank_is_told_its_place() {
    let script = r#"echo "$HEXAGRAM_RANK/$HEXAGRAM_SIZE $HEXAGRAM_LOCAL_RANK/$HEXAGRAM_LOCAL_SIZE" \
        "${RANK-} ${OMPI_COMM_WORLD_RANK-}" """#;
    let mut command = shell(&["-n", "3"], script);
    command.env("RANK", "7").env("OMPI_COMM_WORLD_RANK", "7").env("HEXAGRAM_RANK", "7");
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    for (rank, lines) in by_rank(&ended.stdout) {
        assert_eq!(lines, [format!("{rank}/3 {rank}/3   ")]);
    }
}

#[test]
fn ranks_share_a_secret_that_is_theirs_alone() {
    let ended =
        run(shell(&["-n", "3"], "cat $HEXAGRAM_SECRET_FILE; echo; stat -Lc %a $HEXAGRAM_SECRET_FILE"));
    let ranks = by_rank(&ended.stdout);
    let secret = ranks[&0][0];
    assert!(secret.len() == 64 && secret.bytes().all(|digit| digit.is_ascii_hexdigit()), "{secret}");
    assert!(ranks.len() == 3 && ranks.values().all(|lines| lines == &[secret, "600"]), "{ranks:?}");
}

#[test]
fn only_rank_0_inherits_the_socket() {
    let script = "echo fd=$HEXAGRAM_LISTEN_FD; ls -l /proc/self/fd | grep -c socket: ; true";
    let mut command = shell(&["-n", "2"], script);
    command.env("HEXAGRAM_LISTEN_FD", "99").stdin(Stdio::null());
    let ended = run(command);
    let ranks = by_rank(&ended.stdout);
    assert!(ranks[&0][0] > "fd=" && ranks[&0][0] != "fd=99" && ranks[&0][1] == "1", "{ranks:?}");
    assert_eq!(ranks[&1], ["fd=", "0"]);
}

#[test]
fn rank_0_listens_as_long_as_it_lives_and_no_longer() {
    let script = "test $HEXAGRAM_RANK = 0 || exec sleep 600
        trap 'exit 0' USR1; echo $$; echo $HEXAGRAM_ADDR; while :; do sleep 0.1; done";
    let launcher = Launcher::start(shell(&["-n", "2", "--no-prefix"], script));
    let rank_0 = Pid::from_raw(launcher.line().parse().unwrap()).unwrap();
    let address = launcher.line();
    TcpStream::connect(&address).expect("rank 0 listens");

    rustix::process::kill_process_group(rank_0, Signal::USR1).unwrap();
    let deadline = Instant::now() + DEADLINE;
    while test_kill_process(rank_0).is_ok() {
        assert!(Instant::now() < deadline, "rank 0 does not end");
        thread::yield_now();
    }
    TcpStream::connect(&address).expect_err("rank 0 is gone, and nobody else listens");
    launcher.signal(Signal::INT);
    assert_eq!(launcher.finish().code, Some(130));
}

#[test]
fn two_jobs_at_once_never_collide() {
    let start = || {
        Launcher::start(shell(&["-n", "1"], "echo $HEXAGRAM_ADDR $(cat $HEXAGRAM_SECRET_FILE); sleep 600"))
    };
    let jobs = [start(), start(), start()];
    let seen =
        jobs.iter().flat_map(|job| job.line().split_whitespace().map(String::from).collect::<Vec<_>>());
    let distinct = seen.filter(|word| word != "[0]").collect::<HashSet<_>>();
    assert_eq!(distinct.len(), 6, "{distinct:?}");
}

#[test]
fn cores_are_shared_out_unless_the_user_has_done_so() {
    let script = "echo ${RAYON_NUM_THREADS-unset}";
    let cores = thread::available_parallelism().unwrap().get();
    assert_eq!(run(shell(&["-n", "1"], script)).stdout, [format!("[0] {cores}")]);
    let ended = run(shell(&["-n", "2"], script));
    assert!(ended.stdout.iter().all(|line| line.ends_with(&format!("] {}", (cores / 2).max(1)))));
    let mut command = shell(&["-n", "1"], script);
    command.env("RAYON_NUM_THREADS", "77");
    assert_eq!(run(command).stdout, ["[0] 77"]);
}

// What becomes of their output.

#[test]
fn output_is_prefixed_line_by_line_and_complete() {
    let ended = run(shell(&["-n", "1"], r"printf 'one\n\ntw'; printf 'o\nlast'; printf 'warn\n' >&2"));
    assert_eq!(ended.stdout, ["[0] one", "[0] ", "[0] two", "[0] last"]);
    assert_eq!(ended.stderr, ["[0] warn"]);
}

#[test]
fn bytes_that_are_not_text_pass_unchanged() {
    let launcher = Launcher::start(shell(&["-n", "1"], r"printf '\377\r\001\n'"));
    assert_eq!(launcher.stdout.recv_timeout(DEADLINE).unwrap(), b"[0] \xff\r\x01");
}

#[test]
fn lines_of_many_ranks_never_mix() {
    let script = "line=$(printf '%05000d' 0 | tr 0 $HEXAGRAM_RANK); i=0
        while [ $i -lt 40 ]; do echo $line; echo $line >&2; i=$((i+1)); done";
    let (both, stdout) = io::pipe().unwrap();
    let mut command = shell(&["-n", "8"], script);
    let mut launcher = command.stderr(stdout.try_clone().unwrap()).stdout(stdout).spawn().unwrap();
    drop(command);
    let lines = rest(&lines(both));
    assert!(launcher.wait().unwrap().success());
    assert_eq!(lines.len(), 8 * 2 * 40);
    for (rank, lines) in by_rank(&lines) {
        let whole = rank.to_string().repeat(5000);
        assert!(lines.iter().all(|&line| line == whole), "a line of rank {rank} is broken");
    }
}

#[test]
fn a_flood_does_not_hold_up_the_other_ranks() {
    let script = "test $HEXAGRAM_RANK = 0 && exec yes; echo one; sleep 0.1; echo two; sleep 600";
    let launcher = Launcher::start(shell(&["-n", "2"], script));
    for awaited in ["[1] one", "[1] two"] {
        loop {
            match launcher.line() {
                line if line == awaited => break,
                line => assert_eq!(line, "[0] y"),
            }
        }
    }
    launcher.signal(Signal::INT);
    assert_eq!(launcher.finish().code, Some(130));
}

#[test]
fn a_reader_that_goes_away_does_not_end_the_job() {
    let mut command = shell(&["-n", "2"], "head -c 1000000 /dev/zero | tr '\\0' '\\n'; echo done >&2");
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    let mut stderr = rest(&lines(process.stderr.take().unwrap()));
    stderr.sort();
    assert_eq!(stderr, ["[0] done", "[1] done"]);
    assert!(process.wait().unwrap().success());
}

#[test]
fn a_reader_that_does_not_read_cannot_stop_a_signal() {
    let script = "test $HEXAGRAM_RANK = 0 && exec yes; sleep 0.5; kill -TERM $PPID; sleep 600";
    let mut command = shell(&["-n", "2", "--grace", "1"], script);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let unread = process.stdout.take();
    let stderr = rest(&lines(process.stderr.take().unwrap()));
    assert_eq!(stderr, ["hexagram run: interrupted by signal 15 (SIGTERM); ended every rank"]);
    assert_eq!(process.wait().unwrap().code(), Some(143));
    drop(unread);
}

#[test]
fn a_daemon_that_keeps_the_output_open_cannot_hold_up_the_end() {
    let script = "fifo=$(mktemp -u) && mkfifo $fifo || exit 9
        setsid sh -c 'echo $$ > $0; exec sleep 600' $fifo & read daemon < $fifo; rm $fifo; echo $daemon";
    let ended = run(shell(&["-n", "1"], script));
    assert_eq!(ended.code, Some(0));
    let daemon = ended.stdout[0].strip_prefix("[0] ").unwrap().parse().unwrap();
    kill_process(Pid::from_raw(daemon).unwrap(), Signal::KILL)
        .expect("it is no part of the job, and runs on");
}

// How a job ends.

#[test]
fn a_rank_that_fails_is_named_and_ends_the_others() {
    let script = "test $HEXAGRAM_RANK = 1 && { echo $$; exit 3; }; sleep 600 & sleep 600";
    let launcher = Launcher::start(shell(&["-n", "3", "--no-prefix"], script));
    let pid = launcher.line();
    let ended = launcher.finish();
    assert_eq!(ended.code, Some(3));
    assert_eq!(
        ended.stderr,
        [format!("hexagram run: rank 1 (pid {pid}) exited with code 3 first; ended the other 2 ranks")]
    );
}

#[test]
fn a_rank_that_is_killed_is_blamed_and_not_its_peers() {
    // The peers notice at once: each reads a pipe that only rank 2 holds open for writing.
    let pipe = format!("{}/blame-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let script = "if test $HEXAGRAM_RANK = 2; then exec 3> $PIPE; echo $$; sleep 0.2; kill -KILL $$; fi
        cat $PIPE; exit 1";
    let mut command = shell(&["-n", "4", "--no-prefix"], script);
    command.env("PIPE", &pipe);
    let launcher = Launcher::start(command);
    let pid = launcher.line();
    let ended = launcher.finish();
    fs::remove_file(pipe).unwrap();
    assert_eq!(ended.code, Some(137));
    let said = format!("rank 2 (pid {pid}) was killed by signal 9 (SIGKILL) first; ended the other 3 ranks");
    assert_eq!(ended.stderr, [format!("hexagram run: {said}")]);
}

#[test]
fn what_a_rank_leaves_behind_is_ended_with_it() {
    let ended = run(shell(&["-n", "2", "--no-prefix"], "sleep 600 & sleep 600 & echo left"));
    assert_eq!((ended.code, ended.stdout.len()), (Some(0), 2));
}

#[test]
fn ctrl_c_ends_even_ranks_that_ignore_sigterm() {
    let script = "trap '' TERM; echo ready; sleep 600 & while :; do sleep 0.1; done";
    let launcher = Launcher::start(shell(&["-n", "3", "--no-prefix", "--grace", "1"], script));
    (0..3).for_each(|_| assert_eq!(launcher.line(), "ready"));
    launcher.signal(Signal::INT);
    let ended = launcher.finish();
    assert_eq!(ended.code, Some(130));
    assert_eq!(ended.stderr, ["hexagram run: interrupted by signal 2 (SIGINT); ended every rank"]);
}

#[test]
fn ranks_may_end_well_within_the_grace_and_a_second_ctrl_c_cuts_it_short() {
    let script =
        "trap 'echo saved; test $HEXAGRAM_RANK = 0 && exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let launcher = Launcher::start(shell(&["-n", "2", "--no-prefix", "--grace", "3600"], script));
    (0..2).for_each(|_| assert_eq!(launcher.line(), "ready"));
    launcher.signal(Signal::INT);
    (0..2).for_each(|_| assert_eq!(launcher.line(), "saved"));
    launcher.signal(Signal::INT);
    assert_eq!(launcher.finish().code, Some(130));
}

#[test]
fn a_launcher_that_is_killed_takes_every_process_with_it() {
    let script = "trap '' TERM HUP; sleep 600 & echo ready; sh -c 'sleep 600; true'; true";
    let launcher = Launcher::start(shell(&["-n", "3", "--no-prefix"], script));
    (0..3).for_each(|_| assert_eq!(launcher.line(), "ready"));
    launcher.signal(Signal::KILL);
    assert_eq!(launcher.finish().code, None);
}

#[test]
fn a_hangup_ends_the_job_except_under_nohup() {
    assert_eq!(run(shell(&["-n", "2"], "kill -HUP $PPID; sleep 600")).code, Some(129));
    let ended = run(wrapped("trap '' HUP; exec \"$0\" run -n 1 -- sh -c 'kill -HUP $PPID; echo on'"));
    assert_eq!((ended.code, ended.stdout), (Some(0), vec!["[0] on".into()]));
}

// Calls that cannot work.

#[test]
fn a_program_that_cannot_run_is_named_with_a_remedy() {
    let missing = run(hexagram(&["-n", "4", "--", "no-such-program"]));
    assert_eq!(missing.code, Some(1));
    assert!(
        missing.stderr[0].starts_with("hexagram run: cannot start no-such-program as rank 0"),
        "{:?}",
        missing.stderr
    );
    let forbidden = run(hexagram(&["-n", "4", "--", "/dev/null"]));
    assert!(forbidden.stderr[0].contains("chmod +x"), "{:?}", forbidden.stderr);
    assert_eq!((missing.stderr.len(), forbidden.stderr.len()), (1, 1));
}

#[test]
fn when_one_rank_cannot_start_none_is_left_running() {
    let ended = run(wrapped("ulimit -n 64; exec \"$0\" run -n 100 --no-prefix -- sleep 600"));
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr[0].contains("ulimit -n") && !ended.stderr[0].contains("rank 0"),
        "{:?}",
        ended.stderr
    );
}

#[test]
fn a_senseless_number_of_ranks_is_refused_with_the_cap() {
    for ranks in ["0", "1000000"] {
        let ended = run(hexagram(&["-n", ranks, "--", "true"]));
        assert_eq!(ended.code, Some(2));
        assert!(
            ended.stderr[0].contains(ranks) && ended.stderr[0].contains("1 to 1024"),
            "{:?}",
            ended.stderr
        );
    }
}
