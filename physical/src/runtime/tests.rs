//! The seam, under a runtime that is not the system.

use super::*;
use crate::memory::dtype::DType;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source};
use crate::waiting::drive;
use crate::waiting::stopwatch::Stopwatch;
use crate::{Buffer, World};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_system_is_what_there_is_without_another() {
    assert!(!is_replaced() && current().is_none());
    let start = now();
    sleep(Duration::from_millis(2));
    assert!(start.elapsed() >= Duration::from_millis(2));
    assert!(unix_time() > 50 * 365 * 24 * 3600 * SECOND);
}

#[test]
fn a_runtime_ends_with_its_work_and_is_inherited_by_threads_and_tasks() {
    VirtualTime::run(|| {
        let inherits = |is_inherited: &dyn Fn() -> bool| assert!(is_inherited());
        inherits(&is_replaced);
        let thread = spawn("hexagram-test", || sleep(SECOND)).unwrap();
        thread.join().unwrap();
        let task = spawn_task("hexagram-test", async || assert!(is_replaced())).unwrap();
        task.join().unwrap();
        assert!(now() >= Instant::after_origin(SECOND));
    });
    assert!(!is_replaced());
}

#[test]
fn a_panic_is_handed_to_whoever_joins() {
    let spawned = || {
        let thread = spawn("hexagram-test", || panic!("of a thread")).unwrap().join();
        let task = spawn_task("hexagram-test", async || panic!("of a task")).unwrap().join();
        assert!(thread.is_err() && task.is_err());
    };
    spawned();
    VirtualTime::run(spawned);
}

#[test]
fn a_stopwatch_goes_by_the_clock_of_its_world() {
    let real = std::time::Instant::now();
    VirtualTime::run(|| {
        let mut watch = Stopwatch::with_gap(1000 * SECOND);
        sleep(600 * SECOND);
        assert_eq!(watch.elapsed(), 600 * SECOND);
    });
    assert!(real.elapsed() < 60 * SECOND);
}

/// The actions of three threads with their times, as one list.
fn timeline() -> Vec<(Duration, usize)> {
    VirtualTime::run(|| {
        let start = now();
        let (sender, receiver) = channel();
        let worker = |number: usize| {
            let sender = sender.clone();
            let work = move || {
                for round in 1..=3 {
                    sleep(Duration::from_millis(70 * number as u64));
                    let _ = sender.send((start.elapsed(), number * 10 + round));
                }
            };
            spawn("hexagram-test", work).unwrap()
        };
        let threads = [1, 2, 3].map(worker);
        let seen = (0..9).map(|_| receive(&receiver).unwrap()).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        seen
    })
}

#[test]
fn virtual_time_passes_alike_in_every_run() {
    let first = timeline();
    assert!(first.is_sorted_by_key(|(time, _)| *time));
    assert_eq!(first.last(), Some(&(Duration::from_millis(630), 33)));
    assert!((0..20).all(|_| timeline() == first));
}

#[test]
fn conditions_and_descriptors_are_waited_for_in_virtual_time() {
    VirtualTime::run(|| {
        let start = now();
        let flag = Mutex::new(false);
        assert!(!*wait_while(&Condvar::new(), &flag, 5 * SECOND, |flag| !*flag));
        assert_eq!(start.elapsed(), 5 * SECOND);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let is_ready = |at_most| poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(at_most)).unwrap();
        assert_eq!(is_ready(3 * SECOND), 0);
        assert_eq!(start.elapsed(), 8 * SECOND);
        // Not by a drop: a process that is just being started may hold a copy of the descriptor.
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(is_ready(3 * SECOND), 1);
        assert_eq!(start.elapsed(), 8 * SECOND);
    });
}

#[test]
fn a_message_is_waited_for_no_longer_than_asked() {
    let look = || {
        let start = now();
        let (sender, receiver) = channel();
        sender.send(7).unwrap();
        assert_eq!(receive_within(&receiver, SECOND), Some(7));
        assert_eq!(receive_within(&receiver, SECOND / 100), None);
        assert!(start.elapsed() >= SECOND / 100);
        drop(sender);
        assert_eq!(receive_within(&receiver, Duration::MAX), None);
        start.elapsed()
    };
    look();
    assert_eq!(VirtualTime::run(look), SECOND / 100);
}

/// An operation whose peer never sends, in virtual time: its error, and when it came.
fn late() -> (Duration, String) {
    VirtualTime::run(|| {
        let start = now();
        let mut worlds = World::threads(2).unwrap();
        let (sender, receiver) = channel();
        let other = worlds.pop().unwrap();
        let peer = spawn("hexagram-test", move || {
            let _endpoint = other.open(0).unwrap();
            assert_eq!(receive(&receiver), Ok(()));
        });
        let transport = worlds[0].open(0).unwrap();
        let poison = Poison::default();
        let terms = OperationContext { transport: &*transport, poison: &poison, deadline: 30 * SECOND };
        let tag = Tag::new(0, 0, 0, 0).unwrap();
        let label = Label { tag, fingerprint: Fingerprint::new(OperationKind::SendRecv, DType::F32, 1) };
        let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
        let ticket =
            transport.post_recv(Source::Rank(1), label, buffer.write(0..1).unwrap(), ReceiveMode::Copy);
        let operation = Operation::new(terms, ticket, Source::Rank(1), label);
        let error = drive::block_on(&*transport, operation).unwrap_err().to_string();
        let after = start.elapsed();
        sender.send(()).unwrap();
        peer.unwrap().join().unwrap();
        (after, error)
    })
}

#[test]
fn a_deadline_of_half_a_minute_passes_at_once_in_virtual_time() {
    let (after, error) = late();
    assert!((30 * SECOND..31 * SECOND).contains(&after) && error.contains("30s"), "{after:?}: {error}");
    assert_eq!(late(), (after, error));
}

/// A task that waits for another, without its own thread. Used to join a task as the last step of the code that owns
/// it.
#[test]
fn a_task_may_wait_for_another_in_virtual_time() {
    VirtualTime::run(|| {
        let task = spawn_task("hexagram-test", async || {
            let other = spawn_task("hexagram-other", async || sleep(SECOND)).unwrap();
            other.join().unwrap();
            assert!(now() >= Instant::after_origin(SECOND));
        });
        task.unwrap().join().unwrap();
    });
}
