//! Tests with processes that end at every moment of their start-up. The other ranks must name them long before the
//! deadline: from the first moment on if a launcher watches them, otherwise once they have proved the secret to rank 0.

use crate::bootstrap::handshake::message::MessageReader;
use crate::bootstrap::handshake::secret::Secret;
use crate::bootstrap::handshake::{GREETING, MAGIC, authenticate};
use crate::bootstrap::meeting::attendance_file;
use crate::bootstrap::meeting::join_messages::{Hello, MemberMessage};
use crate::bootstrap::meeting::peer_info::JoinRequest;
use crate::bootstrap::*;
use crate::runtime;
use crate::testing::free_port;
use crate::transport::TransportKind;
use crate::waiting::stopwatch::Stopwatch;
use crate::world::{JoinOptions, World};
use hexagram_launch::Job;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::{env, thread};

/// Number of ranks.
const SIZE: usize = 3;
/// Moments at which a member may end, in order.
const MOMENTS: [&str; 7] = ["started", "connected", "greeted", "proved", "registered", "requested", "joined"];
/// Deadline to join. No survivor comes near it.
const DEADLINE: Duration = Duration::from_secs(600);

/// Delay of the last rank where rank 0 ends early, so that some ranks have joined by then and some have not.
const LATE: Duration = Duration::from_millis(200);

/// Name of the variable with the rank that ends.
const VICTIM: &str = "HEXAGRAM_TEST_VICTIM";
/// Name of the variable with the moment at which it ends.
const MOMENT: &str = "HEXAGRAM_TEST_MOMENT";
/// Name of the variable with the way in which it ends.
const END: &str = "HEXAGRAM_TEST_END";

fn options() -> JoinOptions {
    JoinOptions { transport: TransportKind::Tcp, deadline: DEADLINE, ..JoinOptions::default() }
}

/// Returns the time in milliseconds, on a clock that all processes share.
fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

#[test]
#[ignore = "what the other tests start as a process"]
fn one_rank() {
    let (Ok(victim), Ok(Some(placement))) = (env::var(VICTIM), Placement::from_env()) else { return };
    if victim != placement.rank.to_string() {
        // SAFETY: nothing of this program handles the signal. A launcher must not end a survivor that is only slow.
        unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
        if env::var(MOMENT).unwrap() == "leading" && placement.rank == 2 {
            thread::sleep(LATE);
        }
        survive();
    } else if placement.rank == 0 {
        lead_until(&env::var(MOMENT).unwrap());
    } else {
        join_until(&env::var(MOMENT).unwrap(), &placement);
    }
}

/// Prints which rank this one blames, before or after it has joined.
fn survive() {
    let blamed = World::join(&options()).map(|world| {
        let until = runtime::now() + DEADLINE;
        while world.health().verdict().is_none() && runtime::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        world.health().verdict().cloned()
    });
    let text = blamed.map_or_else(|error| error.to_string(), |verdict| format!("{verdict:?}"));
    eprintln!("at {} blames {text}", now());
}

fn end() {
    eprintln!("at {} ends", now());
    if env::var(END).unwrap() == "exit" {
        std::process::exit(0);
    }
    kill_process(getpid(), Signal::KILL).unwrap();
}

/// Joins as a member does, step by step, and ends at `moment`.
fn join_until(moment: &str, placement: &Placement) {
    let end_at = |here| {
        if here == moment {
            end()
        }
    };
    end_at("started");
    let connect = || loop {
        if let Ok(stream) = placement.rendezvous.connect(0, DEADLINE, None, &mut Stopwatch::start()) {
            stream.set_timeout(DEADLINE).unwrap();
            break stream;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let mut stream = connect();
    end_at("connected");
    if moment == "greeted" {
        stream.write_all(&[MAGIC.as_slice(), &[0; GREETING - MAGIC.len()]].concat()).unwrap();
        stream.read_exact(&mut [0; GREETING]).unwrap();
        end();
    }
    let request = JoinRequest::new(placement, &options()).unwrap();
    let hello = Hello::Rank(request.info.peer(), SIZE).write();
    let secret = loop {
        if let Some(secret) = Secret::of(placement, DEADLINE).unwrap().read().unwrap() {
            break secret;
        }
        thread::sleep(Duration::from_millis(1));
    };
    authenticate(&mut stream, &secret, &hello).unwrap();
    end_at("proved");
    MessageReader::receive(&mut stream).unwrap();
    attendance_file::set_registered(placement, true);
    end_at("registered");
    MemberMessage::Join(Box::new(request)).write().send(&mut stream).unwrap();
    end_at("requested");
    MessageReader::receive(&mut stream).unwrap();
    end_at("joined");
}

/// Joins as rank 0 does, and ends on the way or afterwards.
fn lead_until(moment: &str) {
    match moment {
        "started" => end(),
        "leading" => {
            thread::spawn(|| std::mem::forget(World::join(&options())));
            thread::sleep(LATE / 2);
            end();
        }
        _ => {
            let _world = World::join(&options()).unwrap();
            end();
        }
    }
}

/// Returns a command that runs one function of this test program.
fn this_program(function: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(arguments(function)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn arguments(function: &str) -> [String; 4] {
    ["--exact", &format!("bootstrap::tests::process_exits::{function}"), "--ignored", "--nocapture"]
        .map(str::to_owned)
}

/// Runs a launcher, which is a process of its own because it handles signals.
#[test]
#[ignore = "what the other tests start as a process"]
fn one_launcher() {
    if env::var(VICTIM).is_ok() {
        let arguments = arguments("one_rank").map(Into::into).to_vec();
        Job { arguments, ..Job::new(SIZE, env::current_exe().unwrap()) }.run().unwrap();
    }
}

/// Returns the lines that ranks of a launcher print.
fn launched(victim: usize, moment: &str, end: &str) -> Vec<String> {
    let mut launcher = this_program("one_launcher");
    launcher.env(VICTIM, victim.to_string()).env(MOMENT, moment).env(END, end);
    let said = launcher.output().unwrap().stderr;
    String::from_utf8(said).unwrap().lines().map(str::to_owned).collect()
}

/// Returns the lines that ranks without a launcher print.
fn alone(victim: usize, moment: &str) -> Vec<String> {
    let port = free_port();
    let start = |rank: usize| {
        let mut command = as_rank(this_program("one_rank"), rank, port, &victim.to_string());
        command.env(MOMENT, moment).env(END, "kill").spawn().unwrap()
    };
    let ranks: Vec<_> = (0..SIZE).map(start).collect();
    let said =
        ranks.into_iter().map(|rank| String::from_utf8(rank.wait_with_output().unwrap().stderr).unwrap());
    said.enumerate()
        .flat_map(|(rank, said)| said.lines().map(|line| format!("[{rank}] {line}")).collect::<Vec<_>>())
        .collect()
}

/// Makes `command` a rank by hexagram's variables.
fn as_rank(mut command: Command, rank: usize, port: u16, victim: &str) -> Command {
    for (name, value) in [("RANK", rank), ("SIZE", SIZE), ("LOCAL_RANK", rank), ("LOCAL_SIZE", SIZE)] {
        command.env(format!("HEXAGRAM_{name}"), value.to_string());
    }
    command.env("HEXAGRAM_ADDR", format!("127.0.0.1:{port}")).env(VICTIM, victim);
    command
}

/// Finds the line `[rank] at TIME …` that contains `what`, and returns it with its time.
fn find<'a>(said: &'a [String], rank: usize, what: &str) -> (&'a str, i64) {
    let is_it = |line: &&String| line.starts_with(&format!("[{rank}] at ")) && line.contains(what);
    let line = said.iter().find(is_it).unwrap_or_else(|| panic!("[{rank}] {what}: {said:#?}"));
    (line, line.split_whitespace().nth(2).unwrap().parse().unwrap())
}

/// Checks that every survivor names the victim. Returns the time that the slowest needed, in milliseconds.
fn all_blame(victim: usize, said: &[String]) -> i64 {
    let (_, ended) = find(said, victim, "ends");
    let survivors = (0..SIZE).filter(|rank| *rank != victim);
    let took = survivors.map(|rank| {
        let (line, at) = find(said, rank, "blames");
        let names = [format!("rank {victim} (host "), format!("rank: {victim},")];
        assert!(names.iter().any(|name| line.contains(name)), "{said:#?}");
        at - ended
    });
    took.max().unwrap()
}

fn report(how: &str, moment: &str, victim: usize, took: i64) {
    let _ = writeln!(std::io::stderr(), "rank {victim} {moment}, {how}: named after {took} ms");
}

#[test]
fn a_rank_that_a_launcher_started_is_named_whenever_it_is_killed() {
    for moment in MOMENTS {
        report("launched", moment, 2, all_blame(2, &launched(2, moment, "kill")));
    }
    for moment in ["started", "leading", "joined"] {
        report("launched", moment, 0, all_blame(0, &launched(0, moment, "kill")));
    }
}

#[test]
fn a_rank_that_ends_well_before_it_has_joined_is_named() {
    for (victim, moment) in [(2, "started"), (2, "greeted"), (2, "requested"), (0, "started"), (0, "leading")]
    {
        report("ended well", moment, victim, all_blame(victim, &launched(victim, moment, "exit")));
    }
}

#[test]
fn a_rank_that_nobody_watches_is_named_once_it_has_proved_itself() {
    for moment in &MOMENTS[3..] {
        report("alone", moment, 2, all_blame(2, &alone(2, moment)));
    }
    report("alone", "joined", 0, all_blame(0, &alone(0, "joined")));
}

/// Leads a world without other ranks, and prints the time of its failure.
#[test]
#[ignore = "what the other tests start as a process"]
fn one_leader() {
    if let (Ok(_), Ok(Some(_))) = (env::var(VICTIM), Placement::from_env()) {
        let error = World::join(&JoinOptions { deadline: SHORT_DEADLINE, ..options() }).err().unwrap();
        eprintln!("at {} blames {error}", now());
    }
}

/// Deadline of a rank 0 that is stopped for longer than that.
const SHORT_DEADLINE: Duration = Duration::from_secs(2);

#[test]
fn time_in_which_rank_0_is_stopped_does_not_count() {
    let port = free_port();
    let started = now();
    let leader = as_rank(this_program("one_leader"), 0, port, "none").spawn().unwrap();
    while TcpStream::connect(("127.0.0.1", port)).is_err() && now() - started < 20_000 {
        thread::sleep(Duration::from_millis(1));
    }
    // It leads a moment after it listens.
    thread::sleep(Duration::from_millis(50));
    let pid = Pid::from_child(&leader);
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = now();
    thread::sleep(SHORT_DEADLINE + Duration::from_millis(500));
    let continued = now();
    kill_process(pid, Signal::CONT).unwrap();
    let said = String::from_utf8(leader.wait_with_output().unwrap().stderr).unwrap();
    let said: Vec<String> = said.lines().map(|line| format!("[0] {line}")).collect();
    let (_, ended) = find(&said, 0, "did not join within 2s");
    // A stop counts as one look of half a second. A leader that had ended before tells nothing.
    let least = SHORT_DEADLINE.as_millis() as i64 - (stopped - started) - 500;
    let lasted = ended - continued;
    assert!(ended <= stopped || lasted >= least, "ended {lasted} ms after the stop, {least} expected");
}
