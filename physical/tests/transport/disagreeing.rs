//! Ranks that call different operations, or none: a clear error, at the deadline at the latest.

use super::{End, label, numbers};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn};
use hexagram_physical::transport::{ReceiveMode, Source};
use hexagram_physical::{Buffer, TransportKind, drive};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// As on a rank that was stopped while it waited, and looks at its clock before it reads.
#[test]
fn what_has_arrived_is_read_before_it_is_called_late() {
    if skipped_under_mpi("its ranks meet at a barrier of the process") {
        return;
    }
    for transport in [TransportKind::Shm, TransportKind::Tcp, TransportKind::Mixed] {
        let sent = std::sync::Barrier::new(2);
        spawn(transport, 2, |world| {
            let mut end = End::new(world);
            let label = label(0, 0, 1000);
            let numbers = numbers(1, 0, 1000);
            let buffer = Buffer::from_slice(&numbers).unwrap();
            if end.rank() == 1 {
                end.wait(end.send(0, label, &buffer)).unwrap();
                sent.wait();
                return;
            }
            end.deadline = Duration::from_millis(100);
            let into = Buffer::zeroed(DType::F32, 1000).unwrap();
            let mut receive = pin!(end.recv(Source::Rank(1), label, &into, ReceiveMode::Copy));
            sent.wait();
            let waker = drive::waker();
            let mut context = Context::from_waker(&waker);
            let outcome = loop {
                // Nothing but a judgement reads here.
                match receive.as_mut().poll(&mut context) {
                    Poll::Ready(outcome) => break outcome,
                    Poll::Pending => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            outcome.unwrap();
            assert_eq!(*into.host::<f32>().unwrap(), numbers);
        });
    }
}

#[test]
fn a_slow_message_is_not_late_while_it_moves() {
    if skipped_under_mpi("it is about streams") {
        return;
    }
    const LEN: usize = 4 << 20;
    spawn(TransportKind::Shm, 2, |world| {
        let mut end = End::new(world);
        let buffer = Buffer::zeroed(DType::F32, LEN).unwrap();
        let label = label(0, 0, LEN);
        if end.rank() == 0 {
            end.deadline = Duration::from_secs(1);
            let started = Instant::now();
            end.wait(end.send(1, label, &buffer)).unwrap();
            assert!(started.elapsed() > end.deadline, "the test needs a slower reader");
        } else {
            let mut receive = std::pin::pin!(end.recv(Source::Rank(0), label, &buffer, ReceiveMode::Copy));
            let waker = drive::waker();
            let mut context = std::task::Context::from_waker(&waker);
            while receive.as_mut().poll(&mut context).is_pending() {
                end.transport.progress();
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
}
