//! NCCL's library without a GPU: what is missing of it, its version, and what it says of itself. Without one these are
//! skipped; with the fake one of `cuda/fake`, others run in a process of their own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use super::super::communicator::{begin, draw};
use super::*;
use crate::device::cuda::{Cuda, CudaQueue};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns NCCL's functions; says so if there is none.
fn found() -> Option<&'static Libnccl> {
    let found = Libnccl::get();
    if let Err(error) = &found {
        let error = error.to_string();
        assert!(
            error.starts_with("libnccl.so.2 ") && error.ends_with(INSTALL) && !error.contains('\n'),
            "{error}"
        );
        let _ = writeln!(std::io::stderr(), "skipped: no NCCL");
    }
    found.ok()
}

#[test]
fn versions_are_spelt_and_ordered() {
    assert_eq!(OLDEST.to_string(), "2.27.3");
    assert_eq!(Version(22803).to_string(), "2.28.3");
    assert!(Version(23003) > Version(22907) && Version(22606) < OLDEST);
}

#[test]
fn only_reductions_that_mean_the_same_are_left_to_nccl() {
    let offered =
        |op| DType::ALL.into_iter().filter(|dtype| reduction(op, *dtype).is_some()).collect::<Vec<_>>();
    let integers = [DType::U8, DType::I8, DType::I32, DType::I64];
    let floats = [DType::F16, DType::BF16, DType::F32, DType::F64];
    let both = [&integers[..], &floats].concat();
    assert_eq!(offered(ReduceOp::Sum), both);
    assert_eq!(offered(ReduceOp::Product), both);
    assert_eq!(offered(ReduceOp::Min), integers);
    assert_eq!(offered(ReduceOp::Max), integers);
    assert_eq!(offered(ReduceOp::Mean), floats);
    let bitwise = ReduceOp::ALL.into_iter().filter(|op| op.is_bitwise());
    assert!(bitwise.flat_map(offered).next().is_none());
}

#[test]
fn nccl_says_who_it_is_and_what_is_wrong() {
    let Some(nccl) = found() else { return };
    assert!(version().unwrap() >= OLDEST);
    let mut id = UniqueId([0; 128]);
    // SAFETY: the place is there for one name.
    let drawn = unsafe { (nccl.ncclGetUniqueId)(&mut id) };
    nccl.expect(drawn, Comm::NONE, "draw a name").unwrap();
    assert_ne!(id, UniqueId([0; 128]));
    // There is no such rank; and where there is no GPU, that is said first.
    let mut comm = Comm::NONE;
    let mut config = Config::without_blocking();
    // SAFETY: the place is there for one communicator, and the settings outlive the call.
    let refused = unsafe { (nccl.ncclCommInitRankConfig)(&mut comm, 2, id, 5, &mut config) };
    let error = nccl.expect(refused, Comm::NONE, "connect by NCCL").unwrap_err().to_string();
    assert!(error.starts_with("cannot connect by NCCL: nccl") && error.contains("NCCL_DEBUG="), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

/// A communicator of one rank needs one GPU only.
#[test]
fn one_rank_is_connected_and_aborted() {
    let Some(nccl) = found() else { return };
    let Ok(gpu) = Cuda::new(0) else { return };
    let queue = gpu.queue().unwrap();
    let stream = CudaQueue::of(&queue).unwrap();
    for _ in 0..2 {
        let comm = begin(nccl, &queue, (0, 1), draw(nccl).unwrap()).unwrap();
        let begun = Instant::now();
        while !nccl.is_ready(comm, "connect").unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(60), "NCCL does not connect one rank");
            std::thread::sleep(Duration::from_millis(1));
        }
        let _current = stream.gpu().enter().unwrap();
        // SAFETY: the communicator is there, and nothing uses it afterwards.
        nccl.expect(unsafe { (nccl.ncclCommAbort)(comm) }, Comm::NONE, "abort").unwrap();
    }
}

/// Runs the test `name` of this file, which is ignored otherwise, in a process of its own with this variable; says so if
/// there is no fake NCCL.
#[track_caller]
fn passes(variable: (&str, &str), name: &str) {
    let fake = Library::open(&["libnccl.so.2"], INSTALL)
        .and_then(|library| library.function("hexagramFakeNcclSet\0"));
    if fake.is_err() {
        let _ = writeln!(std::io::stderr(), "skipped: no fake NCCL");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("nccl::library::tests::{name}");
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(variable.0, variable.1).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{variable:?}: {text}");
}

#[test]
fn a_version_that_is_too_old_is_named() {
    passes(("HEXAGRAM_FAKE_NCCL", "version=22606"), "tells_of_the_version");
}

#[test]
#[ignore = "needs NCCL 2.26.6"]
fn tells_of_the_version() {
    let error = version().unwrap_err().to_string();
    assert_eq!(error, format!("libnccl.so.2 is of version 2.26.6, older than 2.27.3; {INSTALL}"));
}

#[test]
fn variables_with_which_nccl_waits_within_a_call_are_refused() {
    passes(("NCCL_COMM_BLOCKING", "1"), "tells_of_the_variable");
    passes(("NCCL_LAUNCH_MODE", "group"), "tells_of_the_variable");
}

#[test]
#[ignore = "needs a variable with which NCCL waits"]
fn tells_of_the_variable() {
    let error = version().unwrap_err().to_string();
    let is_told = ["NCCL_COMM_BLOCKING is 1", "NCCL_LAUNCH_MODE is group"];
    assert!(is_told.iter().any(|told| error.starts_with(told)) && !error.contains('\n'), "{error}");
}
