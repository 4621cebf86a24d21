//! Ranks that leave, panic or fail: who is named, and what still arrives.

use super::{End, label, numbers, on_all};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn};
use hexagram_physical::transport::{Land, Source};
use hexagram_physical::{Buffer, Error, TransportKind};
use std::time::{Duration, Instant};

#[test]
fn a_rank_that_has_finished_is_named_by_those_who_wait_for_it() {
    on_all(&[3], |end| {
        if end.rank() == 1 {
            return;
        }
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        let error = end.wait(end.recv(Source::Rank(1), label(0, 0, 1), &into, Land::Copy)).unwrap_err();
        assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1), "{error}");
    });
}

#[test]
fn what_was_sent_before_leaving_still_arrives() {
    on_all(&[2], |end| {
        let buffer = Buffer::from_slice(&numbers(1, 0, 5000)).unwrap();
        if end.rank() == 1 {
            end.wait(end.send(0, label(0, 0, 5000), &buffer)).unwrap();
            return;
        }
        let into = Buffer::zeroed(DType::F32, 5000).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        end.wait(end.recv(Source::Rank(1), label(0, 0, 5000), &into, Land::Copy)).unwrap();
        assert_eq!(*into.host::<f32>().unwrap(), numbers(1, 0, 5000));
    });
}

#[test]
fn a_panicking_rank_is_the_culprit_on_every_other_rank() {
    if skipped_under_mpi("a panic is caught in all ranks at once") {
        return;
    }
    for transport in TransportKind::ALL {
        let open = std::sync::Barrier::new(4);
        let outcome = std::panic::catch_unwind(|| {
            spawn(transport, 4, |world| {
                let end = End::new(world);
                open.wait();
                if end.rank() == 2 {
                    panic!("on purpose");
                }
                // Nobody waits for rank 2 directly.
                let peer = [1, 3, 9, 0][end.rank()];
                let into = Buffer::zeroed(DType::F32, 1).unwrap();
                let error =
                    end.wait(end.recv(Source::Rank(peer), label(0, 0, 1), &into, Land::Copy)).unwrap_err();
                assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 2), "{error}");
            })
        });
        let panic = outcome.unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"), "{transport}");
    }
}

#[test]
fn a_failure_is_told_once_and_the_end_is_prompt() {
    if skipped_under_mpi("it is about the control connections") {
        return;
    }
    // With verdicts echoed to and fro, the control threads of a larger world would be stuck in each other's writes.
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let open = std::sync::Barrier::new(8);
        spawn(transport, 8, |world| {
            let health = world.health().clone();
            let end = End::new(world);
            open.wait();
            if end.rank() == 5 {
                health.give_up("gave up on purpose");
            }
            let into = Buffer::zeroed(DType::F32, 1).unwrap();
            let peer = (end.rank() + 1) % 8;
            let error =
                end.wait(end.recv(Source::Rank(peer), label(0, 0, 1), &into, Land::Copy)).unwrap_err();
            assert!(error.to_string().contains("gave up on purpose"), "{error}");
            let started = Instant::now();
            drop(end);
            assert!(started.elapsed() < Duration::from_secs(30), "the goodbye was stuck");
        });
    }
}
