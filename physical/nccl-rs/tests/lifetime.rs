//! How communicators end, and what is left of their work.

use super::gpus::{Gpu, SOON, each};
use super::refusals::passes;
use nccl_rs::{Communicator, DataType, Error, Reduction, Status, UniqueId};
use std::time::{Duration, Instant};

#[test]
fn one_rank_begins_and_ends_again() {
    let Some(_gpu) = Gpu::open(0, 1) else { return };
    for round in 0..3 {
        let communicator = Communicator::new(UniqueId::new().unwrap(), 0, 1).unwrap();
        communicator.wait(SOON).unwrap();
        match round {
            0 => communicator.abort().unwrap(),
            1 => super::gpus::close(communicator),
            _ => drop(communicator),
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_waited_for_no_longer_than_one_says() {
    let Some(_gpu) = Gpu::open(0, 1) else { return };
    let communicator = Communicator::new(UniqueId::new().unwrap(), 0, 2).unwrap();
    let begun = Instant::now();
    let limit = Duration::from_millis(50);
    assert_eq!(communicator.wait(limit).unwrap_err(), Error::Late { after: limit });
    communicator.abort().unwrap();
    assert!(begun.elapsed() < SOON);
}

#[test]
fn an_abort_ends_what_waits_for_another_rank() {
    each(2, |r| {
        let x = r.gpu.memory(&[1.0; 4]);
        let sum = || {
            // SAFETY: memory of the GPU with 4 floats, which nothing else uses.
            unsafe {
                r.communicator.on(r.gpu.stream()).all_reduce(x, x, 4, DataType::Float32, Reduction::Sum)
            }
        };
        r.done(sum());
        if r.rank == 0 {
            r.done(sum());
        }
        r.communicator.abort().unwrap();
        r.gpu.wait();
    });
}

#[test]
fn a_failure_on_the_stream_is_told_later() {
    passes("lifetime::", ("HEXAGRAM_FAKE_NCCL", "async_error=0:6"), "tells_of_a_failure_on_the_stream");
}

#[test]
#[ignore = "needs an NCCL that fails"]
fn tells_of_a_failure_on_the_stream() {
    let gpu = Gpu::open(0, 1).unwrap();
    let communicator = Communicator::new(UniqueId::new().unwrap(), 0, 1).unwrap();
    communicator.wait(SOON).unwrap();
    let x = gpu.memory(&[1.0; 4]);
    let on = communicator.on(gpu.stream());
    // SAFETY: memory of the GPU with 4 floats, which nothing else uses.
    unsafe { on.all_reduce(x, x, 4, DataType::Float32, Reduction::Sum) }.unwrap();
    let begun = Instant::now();
    let error = loop {
        assert!(begun.elapsed() < SOON);
        // The stream comes to it when somebody asks.
        // SAFETY: the stream is valid.
        unsafe { cudarc::driver::sys::cuStreamQuery(gpu.stream().cast()) };
        match communicator.is_ready() {
            Err(error) => break error,
            Ok(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(error.status(), Some(Status::REMOTE_ERROR));
    communicator.abort().unwrap();
    gpu.wait();
}
