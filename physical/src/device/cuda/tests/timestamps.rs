//! Times of work: those of the device, and not those at which it was enqueued or asked for.

use super::watched::Word;
use super::*;
use crate::device::Timestamp;
use crate::runtime::{self, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Makes a queue wait for the host. Returns the result of `stamp` after that point, and the time at which the host
/// released the queue.
fn held(queue: &Queue, stamp: impl FnOnce() -> Arc<dyn Timestamp>) -> (Arc<dyn Timestamp>, Instant) {
    let word = Word::new(queue);
    word.wait_on(queue);
    let stamp = stamp();
    runtime::sleep(Duration::from_millis(20));
    assert!(!stamp.has_passed() && stamp.moment().is_none(), "the queue waits");
    assert!(!stamp.wait(Duration::from_millis(1)));
    let released = runtime::now();
    word.set(1);
    assert!(stamp.wait(LIMIT));
    (stamp, released)
}

/// Asserts that a timestamp lies between two moments, within its precision.
fn assert_between(first: Instant, stamp: &dyn Timestamp, last: Instant) {
    let moment = stamp.moment().unwrap();
    // Half a microsecond of the driver's, and as much for f32.
    let error = stamp.error() + Duration::from_micros(1);
    assert!(first <= moment + error && moment <= last + error, "{first:?} {moment:?} {last:?} ± {error:?}");
}

#[test]
fn a_timestamp_is_of_when_the_work_was_done() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    for _ in 0..3 {
        let (stamp, released) = held(&queue, || queue.timestamp().unwrap());
        assert_between(released, &*stamp, runtime::now());
    }
}

#[test]
fn a_timestamp_of_another_librarys_stream_is_so_too() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    // SAFETY: the stream lives as long as its queue.
    let stream = unsafe { gpu.foreign_stream(raw_stream(&queue).unwrap(), Arc::new(queue.clone())) };
    let (stamp, released) = held(&queue, || stream.timestamp());
    assert_between(released, &*stamp, runtime::now());
}

#[test]
fn timestamps_of_a_queue_are_in_order_whatever_they_are_measured_against() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let numbers = Buffer::zeroed_on(&queue, DType::F32, 1000).unwrap();
    let begun = runtime::now();
    let mut stamps = Vec::new();
    for _ in 0..4 {
        let before = gpu.0.clock.bases();
        // Where the machine has much to do, a new base is not worth having, and the old one stays.
        while stamps.len() < 1000 && gpu.0.clock.bases() == before {
            gpu.0.clock.grow_old();
            stamps.push(queue.timestamp().unwrap());
            numbers.write_all().unwrap().scale(2.0).unwrap();
        }
    }
    assert!(stamps.iter().all(|stamp| stamp.wait(LIMIT)));
    let ended = runtime::now();
    stamps.iter().for_each(|stamp| assert_between(begun, &**stamp, ended));
    for pair in stamps.windows(2) {
        assert_between(pair[0].moment().unwrap() - pair[0].error(), &*pair[1], ended);
    }
    assert!(gpu.0.clock.bases() >= 4, "old timestamps keep what they are measured against");
    drop(stamps);
    // Other tests have few.
    let frees = |_| {
        gpu.0.clock.grow_old();
        queue.timestamp().unwrap().wait(LIMIT) && gpu.0.clock.bases() < 4
    };
    assert!((0..1000).any(frees), "the old ones are no longer needed");
}

#[test]
fn what_a_lost_device_has_not_done_has_no_time() {
    super::faults::passes_in("timestamps", "seed=3,lost=40", "has_no_time_on_a_lost_device");
}

#[test]
#[ignore = "needs a driver that loses the device"]
fn has_no_time_on_a_lost_device() {
    let gpu = Cuda::new(0).unwrap();
    let queue = gpu.queue().unwrap();
    let numbers = Buffer::zeroed_on(&queue, DType::F32, 10).unwrap();
    let stamps: Vec<_> = (0..50)
        .map(|_| {
            numbers.write_all().unwrap().scale(2.0).unwrap();
            queue.timestamp().unwrap()
        })
        .collect();
    assert!(queue.check().is_err());
    assert!(stamps.iter().all(|stamp| stamp.wait(LIMIT)), "no wait is endless");
    assert!(stamps.last().unwrap().moment().is_none());
}
