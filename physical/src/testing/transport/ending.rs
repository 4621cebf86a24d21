//! Ranks that leave, panic or fail: the named rank, and the messages that still arrive.

use super::{End, Matrix, label, numbers};
use crate::memory::dtype::DType;
use crate::testing::{skipped_under_mpi, spawn};
use crate::transport::{ReceiveMode, Source};
use crate::{Buffer, Error};
use std::time::Duration;

/// Waits for a rank that has left.
pub fn a_rank_that_has_finished_is_named_by_those_who_wait_for_it(on: &Matrix) {
    on.all(&[3], |end| {
        if end.rank() == 1 {
            return;
        }
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        let error =
            end.wait(end.recv(Source::Rank(1), label(0, 0, 1), &into, ReceiveMode::Copy)).unwrap_err();
        assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 1), "{error}");
    });
}

/// Receives from a rank that has left since it sent.
pub fn what_was_sent_before_leaving_still_arrives(on: &Matrix) {
    on.all(&[2], |end| {
        let buffer = Buffer::from_slice(&numbers(1, 0, 5000)).unwrap();
        if end.rank() == 1 {
            end.wait(end.send(0, label(0, 0, 5000), &buffer)).unwrap();
            return;
        }
        let into = Buffer::zeroed(DType::F32, 5000).unwrap();
        crate::runtime::sleep(Duration::from_millis(100));
        end.wait(end.recv(Source::Rank(1), label(0, 0, 5000), &into, ReceiveMode::Copy)).unwrap();
        assert_eq!(*into.host::<f32>().unwrap(), numbers(1, 0, 5000));
    });
}

/// Panics on one rank while the others wait for each other.
pub fn a_panicking_rank_is_the_culprit_on_every_other_rank(on: &Matrix) {
    if skipped_under_mpi("a panic is caught in all ranks together") {
        return;
    }
    for (transport, _) in on.cases(&[4]) {
        let open = std::sync::Barrier::new(4);
        let outcome = std::panic::catch_unwind(|| {
            spawn(transport, 4, |world| {
                let end = End::new(world);
                open.wait();
                if end.rank() == 2 {
                    panic!("on purpose");
                }
                // No rank waits for rank 2 directly.
                let peer = [1, 3, 9, 0][end.rank()];
                let into = Buffer::zeroed(DType::F32, 1).unwrap();
                let error = end
                    .wait(end.recv(Source::Rank(peer), label(0, 0, 1), &into, ReceiveMode::Copy))
                    .unwrap_err();
                assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 2), "{error}");
            })
        });
        let panic = outcome.unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"), "{transport}");
    }
}
