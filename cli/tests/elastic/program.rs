//! A rank of an elastic job: it loops over checked all-reduces, and continues after every change of the members.
//!
//! It prints lines that begin with `@`, by which a test follows the job: `@ joined GENERATION RANK SIZE PID`, then
//! `@ reduced GENERATION RANK` after its first all-reduce, and `@ ended GENERATION RANK ERROR` if one fails.

use hexagram::{Communicator, Error, JoinOptions, ReduceOp, Result, World};
use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Variable with the folder by which a test controls the ranks.
pub(super) const FOLDER: &str = "HEXAGRAM_TEST_ELASTIC";
/// Variable with the join deadline in seconds.
const JOIN: &str = "HEXAGRAM_TEST_JOIN";
/// File in that folder whose existence ends all ranks with success.
pub(super) const STOP: &str = "stop";
/// File in which rank 0 of later generations than the first does not take part in the operation of the others.
pub(super) const HOLD: &str = "hold";
/// File with which each generation ends after an operation, and the job after 24 generations, without anything left.
pub(super) const TURN: &str = "turn";

/// Numbers in each all-reduce.
const COUNT: usize = 10_000;
/// Generations of `turn`, and the one in which the resources are counted first.
const TURNS: u64 = 24;
const SETTLED: u64 = 4;

/// Why a rank ends its work in a generation.
enum End {
    Stop,
    Change,
}

/// Runs the rank to its end.
pub(super) fn run() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    let mut world = World::join(&options()).unwrap();
    let mut step = 0;
    let mut held = None;
    loop {
        match work(&world, &folder, &mut step) {
            Ok(End::Stop) => return,
            Ok(End::Change) => {}
            Err(error) => {
                // Other layers make errors of their own of it.
                assert!(world.changed(), "{error}");
                say(format_args!("ended {} {} {error}", number(&world), world.rank()));
            }
        }
        if folder.join(TURN).exists() {
            if number(&world) == TURNS {
                return;
            }
            check_held(&mut held, number(&world));
        }
        world = world.next().unwrap();
    }
}

/// Options that a test sets by variables.
fn options() -> JoinOptions {
    let mut options = JoinOptions::default();
    if let Ok(transport) = env::var("HEXAGRAM_TRANSPORT") {
        options.transport = transport.parse().unwrap();
    }
    if let Ok(seconds) = env::var(JOIN) {
        options.deadline = Duration::from_secs(seconds.parse().unwrap());
    }
    options
}

fn number(world: &World) -> u64 {
    world.generation().unwrap()
}

fn say(what: std::fmt::Arguments<'_>) {
    // The test program prints the name of the test without an end of the line.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "\n@ {what}");
}

/// Works in one generation.
fn work(world: &World, folder: &Path, step: &mut i64) -> Result<End> {
    let comm = Communicator::open(world, 0)?;
    let (rank, size) = (world.rank(), world.size());
    say(format_args!("joined {} {rank} {size} {}", number(world), std::process::id()));
    comm.blocking().all_reduce(std::slice::from_mut(step), ReduceOp::Max)?;
    let pid = i64::from(std::process::id());
    let mut pids = vec![0; size];
    pids[rank] = pid;
    comm.blocking().all_reduce(&mut pids, ReduceOp::Sum)?;
    for nth in 0.. {
        let is_held = folder.join(HOLD).exists() && nth > 0 && number(world) > 1 && rank == 0;
        while is_held && !world.changed() {
            thread::sleep(Duration::from_millis(1));
        }
        let mut sums = vec![pid; COUNT];
        sums[1] = *step;
        sums[2] = i64::from(folder.join(STOP).exists());
        comm.blocking().all_reduce(&mut sums, ReduceOp::Sum)?;
        assert_eq!(sums[0], pids.iter().sum::<i64>());
        assert_eq!(sums[COUNT - 1], sums[0]);
        assert_eq!(sums[1], size as i64 * *step);
        *step += 1;
        if nth == 0 {
            say(format_args!("reduced {} {rank}", number(world)));
        }
        if sums[2] > 0 {
            return Ok(End::Stop);
        }
        if is_asked(folder, "leave") {
            std::process::exit(0);
        }
        if is_asked(folder, "fail") {
            world.health().fail_self("found a fault");
            assert!(!world.changed(), "an error of its own");
            std::process::exit(5);
        }
        if world.changed() || folder.join(TURN).exists() {
            return Ok(End::Change);
        }
    }
    Err(Error::usage("the loop has no end", "see above"))
}

/// Returns true if a file asks this process for an action.
fn is_asked(folder: &Path, action: &str) -> bool {
    folder.join(format!("{action}-{}", std::process::id())).exists()
}

/// Fails if this process has more threads, descriptors or shared mappings than in an earlier generation.
fn check_held(held: &mut Option<[usize; 3]>, generation: u64) {
    let count = |path| fs::read_dir(path).unwrap().count();
    let now = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let shared = maps.lines().filter(|line| line.contains("memfd") || line.contains("hexagram-"));
        [count("/proc/self/task"), count("/proc/self/fd"), shared.count()]
    };
    match held {
        None if generation == SETTLED => *held = Some(now()),
        Some(before) if generation + 1 == TURNS => {
            // Threads that have been joined may stay in the system for a moment.
            let is_less = |now: [usize; 3]| now.iter().zip(&*before).all(|(now, before)| now <= before);
            let mut tries = 0..3000;
            while !is_less(now()) && tries.next().is_some() {
                thread::sleep(Duration::from_millis(10));
            }
            assert!(is_less(now()), "{:?} after {before:?}", now());
        }
        _ => {}
    }
}
