//! `hexagram check` on a machine that is well, and on one that is made to lack something.

use crate::harness::{Ended, program, run, wrapped};
use std::process::Command;

fn says(ended: &Ended, what: &[&str]) {
    for what in what {
        assert!(ended.stdout.iter().any(|line| line.contains(what)), "{what} is not in {:#?}", ended.stdout);
    }
}

#[test]
fn a_machine_that_is_well_is_said_to_be() {
    let ended = run(program(&["check"]));
    assert_eq!(ended.code, Some(0), "{:#?} {:#?}", ended.stdout, ended.stderr);
    says(
        &ended,
        &[
            "no launcher",
            "✓ lo: 127.0.0.1",
            "✓ memfd",
            "ulimit -n",
            "✓ transports built in: thread, shm, tcp, mixed",
        ],
    );
    says(
        &ended,
        &[
            "mpi: ",
            if cfg!(feature = "cuda") { "CUDA: built in" } else { "CUDA: not built in" },
            if cfg!(feature = "cuda") { "NCCL: " } else { "NCCL: not built in" },
            "✓ shm: right",
            "✓ tcp: right",
            "✓ mixed: right",
        ],
    );
    if cfg!(feature = "mpi") {
        says(
            &ended,
            &["✓ transports built in: thread, shm, tcp, mixed, mpi", "mpi: built in", "✓ mpi: right"],
        );
    }
    assert!(!ended.stdout.iter().any(|line| line.contains('✗')));
}

#[test]
fn what_a_launcher_has_said_is_told() {
    let mut command = program(&["check"]);
    command.envs([("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]);
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")]);
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{:#?}", ended.stdout);
    says(&ended, &["torchrun's variables: rank 1 of 4, 1 of 2 on this host; rendezvous at 127.0.0.1:29500"]);
    says(&ended, &["✓ lo, 127.0.0.1: routes to the rendezvous address", "✓ shm: right"]);
}

#[test]
#[cfg(not(feature = "cuda"))]
fn libraries_are_found_where_the_loader_would() {
    let folder = crate::harness::folder("libraries");
    for library in ["libcuda.so.1", "libnccl.so.2"] {
        std::fs::write(folder.join(library), "never loaded").unwrap();
    }
    let mut command = program(&["check"]);
    command.env("LD_LIBRARY_PATH", &folder);
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{:#?}", ended.stdout);
    for library in ["libcuda.so.1", "libnccl.so.2"] {
        says(&ended, &[&format!("{library} is at {}", folder.join(library).display())]);
    }
}

#[test]
#[cfg(feature = "cuda")]
fn gpus_are_told_in_columns_with_driver_and_peers() {
    let is_fake = |device: &hexagram::cuda::Description| device.name.contains("Fake");
    if !hexagram::cuda::devices().is_ok_and(|devices| devices.first().is_some_and(is_fake)) {
        eprintln!("skipped: no CUDA device that is faked (physical/cuda/README.md)");
        return;
    }
    let mut command = program(&["check"]);
    command.env("HEXAGRAM_FAKE_CUDA", "devices=2,memory=64M");
    let ended = run(command);
    assert_eq!(ended.code, Some(0), "{:#?}", ended.stdout);
    says(&ended, &["✓ CUDA: built in; the driver is for CUDA 12.0", "NCCL: "]);
    says(&ended, &["- peer access: every GPU accesses the memory of every other GPU"]);
    says(&ended, &["✓ two ranks add numbers: right, and messages travel by "]);
    let of = |index: usize| format!("  ✓ cuda:{index}  ");
    let lines: Vec<&String> =
        (0..2).filter_map(|index| ended.stdout.iter().find(|line| line.starts_with(&of(index)))).collect();
    let [one, other] = lines[..] else { panic!("{:#?}", ended.stdout) };
    let place = |line: &str| ["GiB", "compute capability 7.0", "GPU-"].map(|part| line.find(part).unwrap());
    assert_eq!(place(one), place(other));
    assert_ne!(one[one.find("GPU-").unwrap()..], other[other.find("GPU-").unwrap()..]);
}

#[test]
fn what_is_wrong_is_marked_and_fails() {
    let mut command = program(&["check"]);
    command.envs([("RANK", "5"), ("WORLD_SIZE", "4")]);
    let ended = run(command);
    assert_eq!(ended.code, Some(1));
    says(&ended, &["✗ RANK=5 contradicts WORLD_SIZE=4; ranks count from 0", "✓ tcp: right"]);

    let mut command = program(&["check"]);
    command.envs([("HEXAGRAM_RANK", "1"), ("HEXAGRAM_SIZE", "2"), ("HEXAGRAM_ADDR", "255.255.255.255:1")]);
    let ended = run(command);
    assert_eq!(ended.code, Some(1));
    says(&ended, &["✗ no route to the rendezvous address 255.255.255.255:1", "correct HEXAGRAM_ADDR"]);

    let ended = run(wrapped("ulimit -n 100; exec \"$0\" check"));
    assert_eq!(ended.code, Some(1));
    says(&ended, &["✗ open files (ulimit -n): 100", "`ulimit -Hn 4096`"]);
}

#[test]
fn a_transport_that_does_not_work_fails_its_self_test() {
    // No file may grow beyond 2 KiB, those of memory included.
    let ended = run(wrapped("trap '' XFSZ; ulimit -f 4; exec \"$0\" check"));
    assert_eq!(ended.code, Some(1), "{:#?}", ended.stdout);
    says(&ended, &["✗ memfd: File too large", "use --transport tcp", "✗ shm: rank ", "✓ tcp: right"]);
    assert!(ended.stderr.iter().any(|line| line.starts_with('[') && line.contains("hexagram check: ")));
}

#[test]
fn a_network_that_is_down_is_said_at_once() {
    // A new network namespace, with all interfaces down; skipped if this process may not create one.
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-n", env!("CARGO_BIN_EXE_hexagram")]).args(arguments);
        command
    };
    if !unshare(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: a network of its own needs root and the `unshare` program");
        return;
    }
    let ended = run(unshare(&["check"]));
    assert_eq!(ended.code, Some(1));
    says(
        &ended,
        &["✗ loopback is down", "✗ shm: cannot open a rendezvous at 127.0.0.1: Network is unreachable"],
    );
    says(&ended, &["✗ tcp: cannot open a rendezvous", "(ip link set lo up)"]);
}
