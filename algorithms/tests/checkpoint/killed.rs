//! A job that is killed while it saves, repeatedly: there is always a checkpoint that every rank can load.

use super::{load, record, save, trainer};
use hexagram_algorithms::checkpoint::{BackgroundSaves, Checkpoints};
use hexagram_algorithms::logical::TransportKind;
use hexagram_algorithms::logical::testing::spawn;
use hexagram_algorithms::testing::{Scratch, Trainer};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WHERE: &str = "HEXAGRAM_TEST_CHECKPOINTS";
const KILLS: u64 = 8;

/// Set if the child saves in the background.
const BACKGROUND: &str = "TEST_SAVES_IN_BACKGROUND";

/// The child, until it is killed: it saves after every step, and prints the step of the last complete save.
#[test]
#[ignore = "the test below starts it in a process of its own"]
fn saves_until_it_is_killed() {
    let Ok(at) = env::var(WHERE) else { return };
    let run = |comm| {
        let mut trainer: Trainer<f32> = trainer(&comm)?;
        let checkpoints = Checkpoints::new(&at);
        checkpoints.load(trainer.engine())?;
        let mut saves = BackgroundSaves::new(checkpoints);
        for _ in 0..100_000 {
            super::steps(&mut trainer, 1)?;
            let mut step = trainer.engine().steps();
            if env::var(BACKGROUND).is_ok() {
                saves.begin(trainer.engine(), record(&comm, step))?;
                step -= 1;
            } else {
                save(Path::new(&at), &mut trainer, step)?;
            }
            if comm.rank() == 0 && step > 0 {
                println!("saved {step}");
            }
        }
        Ok(())
    };
    spawn(TransportKind::Thread, 2, run).unwrap();
}

/// Starts the child, waits for a few saves, and kills it at an arbitrary moment. Returns the last step that it printed.
fn kill_one(at: &Path, round: u64, in_background: bool) -> u64 {
    let mut child = Command::new(env::current_exe().unwrap());
    if in_background {
        child.env(BACKGROUND, "1");
    }
    let mut child = child
        .args(["--ignored", "--exact", "--nocapture", "checkpoint::killed::saves_until_it_is_killed"])
        .env(WHERE, at)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut saved = lines.filter_map(|line| line.rsplit_once("saved ")?.1.parse::<u64>().ok());
    let mut last = saved.nth(round as usize % 3).unwrap();
    let moment = Duration::from_micros(round * 7919 % 5000);
    let started = Instant::now();
    while started.elapsed() < moment {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    last = saved.last().unwrap_or(last);
    last
}

/// Kills a child repeatedly; it may have completed as many saves more than it has printed as `ahead`.
fn kill_repeatedly(in_background: bool, ahead: u64) {
    let scratch = Scratch::new();
    for round in 0..KILLS {
        let said = kill_one(scratch.path(), round, in_background);
        let loaded = spawn(TransportKind::Thread, 2, |comm| load(scratch.path(), &comm)).unwrap();
        let (number, steps) = loaded[0].unwrap();
        assert!(loaded[1] == loaded[0] && number == steps, "round {round}: {loaded:?}");
        assert!((said..=said + ahead).contains(&steps), "round {round}: said {said}, has {steps}");
    }
}

#[test]
fn a_job_killed_while_it_saves_leaves_a_checkpoint_that_loads() {
    kill_repeatedly(false, 1);
}

#[test]
fn so_does_a_job_that_saves_in_the_background() {
    kill_repeatedly(true, 2);
}
