//! The device itself: results have the host's bits in every order, nothing is let go of too early or kept for ever. Without
//! a driver, be it the fake one, each of these says that it is skipped.

use super::*;
use crate::dtype::{DType, ReduceOp};
use crate::memory::Buffer;
use crate::testing::late::Late;
use crate::testing::late::tests::relay;
use std::io::Write;

/// Opens the first GPU; says so if there is none.
fn gpu() -> Option<Cuda> {
    let gpu = Cuda::new(0);
    if let Err(error) = &gpu {
        let _ = writeln!(std::io::stderr(), "skipped: no CUDA device: {error}");
    }
    gpu.ok()
}

fn on_host() -> Vec<f32> {
    relay(&[Queue::host(), Queue::host(), Queue::host()]).unwrap()
}

#[test]
fn three_queues_have_the_bits_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let want = on_host();
    for _ in 0..20 {
        let queues = [(); 3].map(|()| gpu.queue().unwrap());
        assert_eq!(relay(&queues).unwrap(), want);
    }
    let one = gpu.queue().unwrap();
    assert_eq!(relay(&[one.clone(), one.clone(), one]).unwrap(), want, "one queue");
}

#[test]
fn it_mixes_with_the_host_and_with_other_devices() {
    let Some(gpu) = gpu() else { return };
    let want = on_host();
    let late = Late::new(3);
    for place in 0..3 {
        for other in [Queue::host(), late.queue()] {
            let mut queues = [(); 3].map(|()| gpu.queue().unwrap());
            queues[place] = other;
            assert_eq!(relay(&queues).unwrap(), want, "queue {place} is another device's");
        }
    }
}

#[test]
fn every_type_and_length_comes_back_as_it_went() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    for len in [0, 1, 3, 1000, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        let up = Buffer::from_slice_on(&queue, &bytes).unwrap();
        let there = up.copied().unwrap();
        assert_eq!(*there.host::<u8>().unwrap(), *bytes, "{len} bytes");
        there.write_all().unwrap().clear();
        assert!(there.host::<u8>().unwrap().iter().all(|byte| *byte == 0), "{len} bytes");
    }
    let sum = Buffer::from_slice_on(&queue, &[1i64, -2]).unwrap();
    let other = sum.copied().unwrap();
    sum.write_all().unwrap().reduce(ReduceOp::Sum, &other.read_all().unwrap()).unwrap();
    assert_eq!(*sum.host::<i64>().unwrap(), [2, -4]);
    assert_eq!(Buffer::zeroed_on(&queue, DType::F64, 3).unwrap().host::<f64>().unwrap().len(), 3);
}

#[test]
fn a_thread_that_has_enqueued_nothing_may_ask_for_an_event() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let sum = Buffer::from_slice_on(&queue, &[1.0f32; 1000]).unwrap();
    sum.write_all().unwrap().scale(2.0).unwrap();
    let event = queue.device().unwrap().record();
    std::thread::spawn(move || {
        assert!(event.wait(std::time::Duration::from_secs(60)));
        assert!(event.has_happened() && event.failure().is_none());
    })
    .join()
    .unwrap();
}
