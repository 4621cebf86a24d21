//! What is missing or wrong, said in one line. Some run in a process of their own, over the fake NCCL of this repository.

use super::gpus::{Gpu, skipped};
use nccl_rs::{Communicator, Error, Status, UniqueId, Version, version};
use std::process::Command;

/// Runs the test `name` of a file, which is ignored otherwise, in a process of its own with this variable; says so if there
/// is no fake NCCL.
#[track_caller]
pub(crate) fn passes(file: &str, variable: (&str, &str), name: &str) {
    // SAFETY: its initialisation code runs in all tests anyway.
    let library = unsafe { libloading::Library::new("libnccl.so.2") };
    // SAFETY: the function is not called.
    let is_fake = |library: &libloading::Library| unsafe {
        library.get::<unsafe extern "C" fn()>("hexagramFakeNcclSet\0").is_ok()
    };
    if !library.as_ref().is_ok_and(is_fake) {
        return skipped("no fake NCCL");
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{file}{name}");
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(variable.0, variable.1).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{variable:?}: {text}{errors}");
}

#[test]
fn a_machine_without_nccl_is_told_so() {
    match version() {
        Ok(version) => assert!(version >= Version::OLDEST),
        Err(error) => {
            assert!(UniqueId::new().is_err() && nccl_rs::group(|| Ok(())).is_err());
            let error = error.to_string();
            assert!(error.starts_with("libnccl.so.2 ") && !error.contains('\n'), "{error}");
            skipped(&error);
        }
    }
}

#[test]
fn nccl_says_what_is_wrong() {
    let Ok(id) = UniqueId::new() else { return skipped("no NCCL") };
    assert_ne!(id.as_bytes(), &[0; 128]);
    assert_eq!(UniqueId::from_bytes(*id.as_bytes()), id);
    // There is no such rank; and where there is no GPU, that is said first.
    let error = Communicator::new(id, 5, 2).unwrap_err();
    assert!(error.status().is_some_and(|status| status != Status::SUCCESS));
    let error = error.to_string();
    assert!(error.starts_with("nccl") && error.contains("NCCL_DEBUG=") && !error.contains('\n'), "{error}");
    let number = usize::MAX;
    assert_eq!(Communicator::new(id, 0, number).unwrap_err(), Error::OutOfRange { number });
}

#[test]
fn a_root_that_is_none_is_refused() {
    let Some(gpu) = Gpu::open(0, 1) else { return };
    let communicator = Communicator::new(UniqueId::new().unwrap(), 0, 1).unwrap();
    communicator.wait(super::gpus::SOON).unwrap();
    let x = gpu.memory(&[1.0]);
    // SAFETY: memory of the GPU with one float, which nothing else uses.
    let call = || unsafe { communicator.on(gpu.stream()).broadcast(x, x, 1, nccl_rs::DataType::Float32, 7) };
    assert_eq!(call().unwrap_err().status(), Some(Status::INVALID_ARGUMENT));
    assert_eq!(nccl_rs::group(call).unwrap_err().status(), Some(Status::INVALID_ARGUMENT));
    communicator.abort().unwrap();
}

#[test]
fn a_version_that_is_too_old_is_named() {
    passes("refusals::", ("HEXAGRAM_FAKE_NCCL", "version=22606"), "tells_of_the_version");
}

#[test]
#[ignore = "needs NCCL 2.26.6"]
fn tells_of_the_version() {
    let error = version().unwrap_err().to_string();
    assert_eq!(error, "libnccl.so.2 is of version 2.26.6, older than 2.27.3");
}

#[test]
fn variables_with_which_nccl_waits_within_a_call_are_refused() {
    passes("refusals::", ("NCCL_COMM_BLOCKING", "1"), "tells_of_the_variable");
    passes("refusals::", ("NCCL_LAUNCH_MODE", "group"), "tells_of_the_variable");
}

#[test]
#[ignore = "needs a variable with which NCCL waits"]
fn tells_of_the_variable() {
    let error = version().unwrap_err().to_string();
    let is_told = ["NCCL_COMM_BLOCKING is 1", "NCCL_LAUNCH_MODE is group"];
    assert!(is_told.iter().any(|told| error.starts_with(told)) && !error.contains('\n'), "{error}");
}

#[test]
fn a_failure_while_ranks_connect_is_told_later() {
    passes("refusals::", ("HEXAGRAM_FAKE_NCCL", "init=3"), "tells_of_a_failure_to_connect");
}

#[test]
#[ignore = "needs an NCCL that does not connect"]
fn tells_of_a_failure_to_connect() {
    let _gpu = Gpu::open(0, 1).unwrap();
    let communicator = Communicator::new(UniqueId::new().unwrap(), 0, 1).unwrap();
    let error = communicator.wait(super::gpus::SOON).unwrap_err();
    assert_eq!(error.status(), Some(Status::INTERNAL_ERROR));
    assert!(error.to_string().contains("last warning: HEXAGRAM_FAKE_NCCL says so"), "{error}");
    communicator.abort().unwrap();
}
