//! Streams that share a work queue of their GPU, as they do on a real one: what is behind a wait there waits, too.

use super::processes::{ROLE, said};
use super::{Case, End, cases, is_fake, on_host, sum_of_floats};
use crate::memory::dtype::DType;
use crate::memory::hash::{START, of_bytes};
use crate::testing::spawn;
use crate::transport::TransportKind;
use std::env;
use std::process::{Command, Stdio};

const RANKS: usize = 3;

/// Returns the output lines of a process that plays `role` with so many work queues and this seed.
fn play(role: &str, queues: u32, seed: u32) -> Vec<String> {
    let mut command = Command::new(env::current_exe().unwrap());
    let test = "device_paths::ipc::tests::queues::ranks_as_threads";
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(ROLE, role);
    command.env("HEXAGRAM_FAKE_CUDA", format!("seed={seed},queues={queues}")).stdout(Stdio::piped());
    said(command.spawn().unwrap(), "bits ")
}

#[test]
#[ignore = "what the others start as a process"]
fn ranks_as_threads() {
    let Ok(role) = env::var(ROLE) else { return };
    let bits = match &*role {
        "collectives" => spawn(TransportKind::Thread, RANKS, |world| {
            let end = End::of_gpu(&world).unwrap();
            some_cases().iter().map(|case| end.run(case)).collect::<Vec<_>>().concat()
        }),
        _ => two_worlds(),
    };
    bits.into_iter().for_each(|bits| println!("bits {:016x}", of_bytes(START, bits)));
}

/// Returns every eighth collective, of all kinds.
fn some_cases() -> Vec<Case> {
    cases().into_iter().step_by(8).collect()
}

/// Lets two worlds that know nothing of each other share a GPU.
fn two_worlds() -> Vec<Vec<u8>> {
    let world = || {
        spawn(TransportKind::Shm, 2, |world| {
            let end = End::of_gpu(&world).unwrap();
            let buffer = end.buffer(DType::F32, bytemuck::cast_slice(&[1f32; 1000]), true);
            for _ in 0..20 {
                end.wait(end.post(end.label(sum_of_floats(1000)), None, &buffer)).unwrap();
            }
            buffer.host::<f32>().unwrap().iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<u8>>()
        })
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(world);
        [world(), other.join().unwrap()].concat()
    })
}

#[test]
fn ranks_whose_streams_share_work_queues_do_not_wait_for_each_other_for_ever() {
    if !is_fake() {
        return;
    }
    let want: Vec<String> = on_host(RANKS, &some_cases())
        .into_iter()
        .map(|bits| format!("{:016x}", of_bytes(START, bits.concat())))
        .collect();
    for (queues, seed) in [(1, 0), (1, 1), (2, 2), (2, 3)] {
        assert_eq!(play("collectives", queues, seed), want, "{queues} work queues, seed {seed}");
    }
}

#[test]
fn worlds_whose_streams_share_work_queues_do_not_wait_for_each_other_for_ever() {
    if !is_fake() {
        return;
    }
    let sum = 2f32.powi(20).to_ne_bytes().repeat(1000);
    let want = vec![format!("{:016x}", of_bytes(START, sum)); 4];
    for (queues, seed) in [(1, 1), (2, 2)] {
        assert_eq!(play("worlds", queues, seed), want, "{queues} work queues, seed {seed}");
    }
}
