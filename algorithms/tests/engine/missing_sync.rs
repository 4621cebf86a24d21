//! A training on GPUs gives wrong results if one of its streams omits a wait for an event. Separate processes omit each
//! wait, over the fake driver, which does no work before a thread waits for it. Without that driver the test prints
//! that it is skipped.
//!
//! Not every omission has an effect: a wait that orders a writer after a reader matters only if the writer comes first
//! in the order of a seed, and a wait that is implied by another never matters.

use super::late::{Place, bits, train};
use super::warmed_up::algorithms;
use hexagram_algorithms::logical::device::cuda::devices;
use hexagram_algorithms::logical::testing::{is_deep, queue, spawn};
use hexagram_algorithms::logical::{Communicator, Queue, TransportKind};
use std::env;
use std::io::Write;
use std::process::Command;

/// Algorithm of the training.
const ALGORITHM: &str = "HEXAGRAM_TEST_ALGORITHM";

/// Random-k with shared indices, the last one with this name.
const LINEAR: &str = "compressed-allreduce";

/// Consequence of an omitted wait.
#[derive(Debug, PartialEq, Eq)]
enum Consequence {
    /// There are fewer waits.
    NotReached,
    /// A notification comes too early: the woken thread checks itself whether the event has happened.
    Harmless,
    Noticed,
    Unnoticed,
}

/// Orders of work in which a wait is omitted until one shows an effect.
const SEEDS: [u64; 3] = [3, 4, 5];

/// Trains in separate processes that omit one wait.
fn leave_out(algorithm: &str, wait: usize) -> Consequence {
    let consequences = SEEDS.iter().map(|seed| leave_out_once(algorithm, wait, *seed));
    consequences.into_iter().find(|found| *found != Consequence::Unnoticed).unwrap_or(Consequence::Unnoticed)
}

fn leave_out_once(algorithm: &str, wait: usize, seed: u64) -> Consequence {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "engine::missing_sync::trains_as_on_the_host", "--ignored", "--nocapture"]);
    command.env("HEXAGRAM_FAKE_CUDA", format!("seed={seed},delay=8000000,skip_wait={wait}"));
    let ended = command.env(ALGORITHM, algorithm).env("HEXAGRAM_TEST_DEVICE", "cuda").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    if !said.contains("a wait was left out") {
        assert!(ended.status.success(), "with every wait: {said}");
        return Consequence::NotReached;
    }
    match ended.status.success() {
        false => Consequence::Noticed,
        true if said.contains("before a function of the host") => Consequence::Harmless,
        true => Consequence::Unnoticed,
    }
}

#[test]
fn waits_that_are_left_out_are_noticed() {
    if !devices().is_ok_and(|gpus| gpus.iter().any(|gpu| gpu.name.starts_with("Fake"))) {
        let _ = writeln!(std::io::stderr(), "skipped: no fake CUDA driver");
        return;
    }
    let is_long = is_deep();
    let (step, most) = if is_long { (1, usize::MAX) } else { (29, 6) };
    for algorithm in ["gradient-allreduce", "bytegrad", LINEAR] {
        let mut found = Vec::new();
        for wait in (0..).step_by(step).take(most) {
            match leave_out(algorithm, wait) {
                Consequence::NotReached => break,
                consequence => found.push((wait, consequence)),
            }
        }
        let count = |what| found.iter().filter(|(_, consequence)| *consequence == what).count();
        let noticed = count(Consequence::Noticed);
        let harmless = count(Consequence::Harmless);
        let unnoticed = count(Consequence::Unnoticed);
        let told = format!("{algorithm}: {noticed} waits noticed, {unnoticed} not, {harmless} of bells");
        let _ = writeln!(std::io::stderr(), "{told}");
        assert!(noticed >= 2 * unnoticed.max(1), "{told}: {found:?}");
    }
}

#[test]
#[ignore = "what the other test starts as a process"]
fn trains_as_on_the_host() {
    let Ok(name) = env::var(ALGORITHM) else { return };
    let algorithm = algorithms().into_iter().rfind(|algorithm| algorithm.name() == name).unwrap();
    let trained = |place: Place<'_>| {
        let run = |comm: Communicator| bits(&train(&comm, algorithm.clone(), place)?);
        spawn(TransportKind::Thread, 2, run).unwrap()
    };
    let expected = trained(&Queue::host);
    assert!(trained(&queue) == expected, "the bits are others");
}
