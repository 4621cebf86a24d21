//! `hexagram run` with real processes: shell one-liners as ranks, every wait on an event, with a deadline.

use crate::harness::{DEADLINE, Launcher, by_rank, folder, hexagram, lines, rest, run, shell, wrapped};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

// Variables of the ranks.

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
fn a_launcher_whose_variables_are_not_read_is_named() {
    for (name, is_named) in [("FLUX_TASK_RANK", true), ("PMIX_RANK", true), ("RANK", false)] {
        let mut command = shell(&["-n", "2"], "true");
        command.env(name, "1");
        let ended = run(command);
        assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
        let named =
            ended.stderr.iter().filter(|line| line.contains(&format!("{name}=1: each process"))).count();
        assert_eq!(named, usize::from(is_named), "{:?}", ended.stderr);
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
    // No process keeps its socket: there is no listener any more, or the launcher answers already.
    if let Ok(mut stream) = TcpStream::connect(&address) {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let _ = stream.write_all(b"who is there?");
        let ended = stream.read(&mut [0]);
        let is_closed = |kind| kind == io::ErrorKind::ConnectionReset;
        assert!(ended.as_ref().map_or_else(|error| is_closed(error.kind()), |read| *read == 0), "{ended:?}");
    }
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
    let script = "echo ${RAYON_NUM_THREADS-unset} ${OMP_NUM_THREADS-unset}";
    let cores = thread::available_parallelism().unwrap().get();
    assert_eq!(run(shell(&["-n", "1"], script)).stdout, [format!("[0] {cores} {cores}")]);
    let ended = run(shell(&["-n", "2"], script));
    let half = (cores / 2).max(1);
    assert!(ended.stdout.iter().all(|line| line.ends_with(&format!("] {half} {half}"))));
    let mut command = shell(&["-n", "1"], script);
    command.env("RAYON_NUM_THREADS", "77").env("OMP_NUM_THREADS", "78");
    assert_eq!(run(command).stdout, ["[0] 77 78"]);
}

// Their output.

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

/// A rank's command that starts a process in a new session, and waits until it runs.
const DAEMON: &str = r#"fifo=$(mktemp -u) && mkfifo "$fifo" || exit 9
    setsid sh -c 'echo $$ > "$0"; exec sleep 100' "$fifo" & read daemon < "$fifo"; rm "$fifo""#;

#[test]
fn a_daemon_that_keeps_the_output_open_cannot_hold_up_the_end() {
    let ended = run(shell(&["-n", "1"], &format!("{DAEMON}; echo done")));
    assert_eq!((ended.code, ended.stdout), (Some(0), vec!["[0] done".into()]));
}

#[test]
fn a_daemon_ends_with_the_job_and_others_do_not() {
    // It shares the launcher's own output, which ends when all its holders have ended.
    let script = format!("{DAEMON}; echo $daemon; test $HEXAGRAM_RANK = 0 || exec sleep 600");
    let [one, other] = [0, 1].map(|_| Launcher::start(shell(&["-n", "2", "--no-prefix"], &script)));
    let Leftovers(daemons) = &Leftovers([&one, &one, &other, &other].map(Launcher::line).into());
    one.signal(Signal::INT);
    assert_eq!(one.finish().code, Some(130));
    assert!(daemons[2..].iter().all(|daemon| state(daemon).is_some_and(|state| state != 'Z')));
    other.signal(Signal::TERM);
    assert_eq!(other.finish().code, Some(143));
}

/// The system's state of a process: `T` is stopped, `Z` ended.
fn state(process: &str) -> Option<char> {
    fs::read_to_string(format!("/proc/{process}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// Processes that would outlive a test that fails.
struct Leftovers(Vec<String>);

impl Drop for Leftovers {
    fn drop(&mut self) {
        for process in self.0.iter().filter(|_| thread::panicking()) {
            let _ = kill_process(Pid::from_raw(process.parse().unwrap()).unwrap(), Signal::KILL);
        }
    }
}

fn await_state(process: &str, is_it: impl Fn(char) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !state(process).is_some_and(&is_it) {
        assert!(Instant::now() < deadline, "process {process} is {:?}", state(process));
        thread::yield_now();
    }
}

/// A launcher that accepts Ctrl-Z, even if the tests' parent ignores it.
fn stoppable(command: &Command) -> Launcher {
    let mut plain = Command::new("env");
    plain.arg("--default-signal=TSTP,CONT").arg(command.get_program()).args(command.get_args());
    Launcher::start(plain)
}

#[test]
fn ctrl_z_stops_everything_and_it_goes_on() {
    let script = format!("{DAEMON}; echo $daemon; echo $$; while :; do echo tick; sleep 0.05; done");
    let job = stoppable(&shell(&["-n", "2", "--no-prefix"], &script));
    let mut processes = Leftovers(vec![job.process.id().to_string()]);
    while processes.0.len() < 5 {
        processes.0.extend(Some(job.line()).filter(|line| line != "tick"));
    }
    for _ in 0..2 {
        job.signal(Signal::TSTP);
        // A shell that has just forked waits (`D`) for its child, which is stopped.
        processes.0.iter().for_each(|process| await_state(process, |state| "TD".contains(state)));
        // Whatever was written before.
        while job.stdout.try_recv().is_ok() {}
        job.signal(Signal::CONT);
        processes.0.iter().for_each(|process| await_state(process, |state| !"TD".contains(state)));
        assert_eq!(job.line(), "tick");
    }
    job.signal(Signal::INT);
    assert_eq!(job.finish().code, Some(130));
}

#[test]
fn who_is_stopped_and_goes_on_at_once_is_not_left_stopped() {
    let job = stoppable(&shell(&["-n", "2", "--no-prefix"], "echo ready; sleep 600"));
    (0..2).for_each(|_| assert_eq!(job.line(), "ready"));
    job.signal(Signal::TSTP);
    job.signal(Signal::CONT);
    job.signal(Signal::INT);
    assert_eq!(job.finish().code, Some(130));
}

#[test]
fn a_stopped_rank_hears_that_the_job_is_over() {
    let script =
        "test $HEXAGRAM_RANK = 0 && exec sleep 600; trap 'exit 3' TERM; echo $$; kill -STOP $$; exit 4";
    // A grace far longer than this test may take: only SIGTERM can end the rank.
    let job = Launcher::start(shell(&["-n", "2", "--grace", "100000"], script));
    let line = job.line();
    let rank = line.strip_prefix("[1] ").unwrap();
    await_state(rank, |state| state == 'T');
    job.signal(Signal::TERM);
    assert_eq!(job.finish().code, Some(143));
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
    // The peers notice immediately: each reads a pipe that only rank 2 holds open for writing.
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
    let folder = run(hexagram(&["-n", "4", "--", "/usr"]));
    assert!(folder.stderr[0].contains("it is a folder"), "{:?}", folder.stderr);
    assert_eq!((missing.stderr.len(), forbidden.stderr.len()), (1, 1));
}

#[test]
fn when_one_rank_cannot_start_none_is_left_running() {
    let ended = run(wrapped("ulimit -n 64; exec \"$0\" run -n 100 --no-prefix -- sleep 600"));
    assert_eq!(ended.code, Some(1));
    let said = &ended.stderr[0];
    assert!(said.contains("may have 64 open files (ulimit -n)") && !said.contains("rank 0"), "{said}");
    assert!(said.contains("needs some 232 for starting 100 ranks"), "{said}");
}

#[test]
fn more_ranks_than_the_soft_limit_of_open_files_allows_are_started() {
    let script = r#"ulimit -Hn; ulimit -Sn 64; exec "$0" run -n 30 -- sh -c 'ulimit -Sn'"#;
    let ended = run(wrapped(script));
    assert_eq!(ended.code, Some(0), "{:?}", ended.stderr);
    let hard: u64 = ended.stdout[0].parse().unwrap_or(u64::MAX);
    let raised = hard.min(1 << 20).to_string();
    let ranks = by_rank(&ended.stdout[1..]);
    assert!(ranks.len() == 30 && ranks.values().all(|said| said == &[raised.as_str()]), "{ranks:?}");
}

#[test]
fn a_rank_0_that_can_open_too_few_files_says_so_on_every_rank() {
    // Rank 0 comes last: after it has given up, it answers until half a second passes without a connection.
    let script = r#"test $HEXAGRAM_RANK = 0 || { touch $HEXAGRAM_RANK; exec "$0" check --self-test tcp; }
        until test $(ls | wc -l) = 19; do sleep 0.1; done; sleep 1; ulimit -n 20; echo $$; exec "$0" check --self-test tcp"#;
    let mut command = hexagram(&["-n", "20", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_hexagram")]);
    command.current_dir(folder("few-files"));
    let ended = run(command);
    assert_eq!(ended.code, Some(1));
    let pid = ended.stdout[0].strip_prefix("[0] ").unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let what = format!("rank 0 (host {host}, pid {pid}) may have 20 open files (ulimit -n) and needs some ");
    for rank in 0..20 {
        let said = |line: &&String| line.starts_with(&format!("[{rank}] hexagram check: "));
        let lines: Vec<_> = ended.stderr.iter().filter(said).collect();
        assert!(lines.len() == 1 && lines[0].contains(&what), "rank {rank}: {lines:?} of {:?}", ended.stderr);
        assert!(lines[0].contains("raise the hard limit"), "{lines:?}");
    }
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
