//! Ranks that are processes: the memory of each is opened by the others. They are this test program, started anew.

use super::{End, cases, on_host, queue};
use crate::memory::hash::{START, of_bytes};
use crate::world::{JoinOptions, World};
use std::env;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The variable that says what a rank is to do.
pub(super) const ROLE: &str = "TEST_ROLE";

/// Starts the ranks of a job on this host, over the transport that ranks have by default, each with these settings of
/// the fake driver.
pub(super) fn start(role: &str, settings: &[&str]) -> Vec<Child> {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let job = u64::from(std::process::id()) << 32 | u64::from(JOBS.fetch_add(1, Ordering::Relaxed));
    let size = settings.len();
    let start = |(rank, settings): (usize, &&str)| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([
            "--exact",
            "device_paths::ipc::tests::processes::one_rank",
            "--ignored",
            "--nocapture",
        ]);
        command.env("OMPI_MCA_ess_base_jobid", job.to_string()).env(ROLE, role);
        for (name, value) in [("RANK", rank), ("SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_SIZE", size)] {
            command.env(format!("OMPI_COMM_WORLD_{name}"), value.to_string());
        }
        if !settings.is_empty() {
            command.env("HEXAGRAM_FAKE_CUDA", settings);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
    };
    settings.iter().enumerate().map(start).collect()
}

/// Returns what a rank has said in lines that begin so.
pub(super) fn said(rank: Child, begin: &str) -> Vec<String> {
    let output = rank.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(begin));
    lines.map(|(_, rest)| rest.to_owned()).collect()
}

#[test]
#[ignore = "what the other tests start as a process"]
fn one_rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let world = World::join(&JoinOptions::default()).unwrap();
    match role.as_str() {
        "bits" => say_bits(&world),
        role => super::failures::play(role, world),
    }
}

/// Hashes of all results.
fn say_bits(world: &World) {
    let end = End::of_gpu(world).unwrap();
    for case in cases() {
        println!("bits {:016x}", of_bytes(START, end.run(&case)));
    }
}

#[test]
fn processes_have_the_bits_of_shared_memory() {
    if queue().is_none() {
        return;
    }
    // The driver of the first one says once that memory is open already, as if an endpoint that is gone had it.
    let cases = cases();
    let want = on_host(2, &cases);
    for (child, want) in start("bits", &["open=0", "seed=3"]).into_iter().zip(want) {
        let hashes = want.into_iter().map(|bytes| format!("{:016x}", of_bytes(START, bytes)));
        assert!(said(child, "bits ") == hashes.collect::<Vec<_>>());
    }
}
