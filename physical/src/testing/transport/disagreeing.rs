//! Ranks that call different operations, or none: an error that reports it, at the deadline at the latest.

use super::{LONG, Matrix, label};
use crate::memory::dtype::DType;
use crate::transport::{ReceiveMode, Source};
use crate::{Buffer, Error};
use std::time::Duration;

/// Calls the same operation with different counts.
pub fn disagreement_is_an_error_that_prints_both_sides(on: &Matrix) {
    on.all(&[2], |end| {
        let count = 10 + end.rank();
        let peer = 1 - end.rank();
        let out = Buffer::zeroed(DType::F32, count).unwrap();
        let into = Buffer::zeroed(DType::F32, count).unwrap();
        let send = end.send(peer, label(7, 0, count), &out);
        let error =
            end.wait(end.recv(Source::Rank(peer), label(7, 0, count), &into, ReceiveMode::Copy)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("send/recv(10 × f32)") && text.contains("send/recv(11 × f32)"), "{text}");
        drop(send);
    });
}

/// Sends more or fewer bytes than the receive expects.
pub fn a_message_of_another_size_is_an_error_that_prints_both_sizes(on: &Matrix) {
    on.all(&[2], |end| {
        let mine = 10 + end.rank();
        let theirs = 11 - end.rank();
        // Both sides use the same operation, as if sizes follow from other data.
        let label = label(0, 0, 10);
        let peer = 1 - end.rank();
        let [out, into] = [mine, mine].map(|len| Buffer::zeroed(DType::F32, len).unwrap());
        let send = end.send(peer, label, &out);
        let error =
            end.wait(end.recv(Source::Rank(peer), label, &into, ReceiveMode::Copy)).unwrap_err().to_string();
        for count in [mine, theirs] {
            assert!(error.contains(&format!("send/recv({count} × f32)")), "{error}");
        }
        drop(send);
    });
}

/// Waits for a message that is never sent.
pub fn nobody_answering_is_a_deadline_that_names_the_peer(on: &Matrix) {
    on.all(&[2], |mut end| {
        end.deadline = Duration::from_millis(150);
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        if end.rank() == 0 {
            let error =
                end.wait(end.recv(Source::Rank(1), label(0, 0, 1), &into, ReceiveMode::Copy)).unwrap_err();
            assert!(
                matches!(&error, Error::Deadline { waiting_for: Some(peer), .. } if peer.rank == 1),
                "{error}"
            );
        } else {
            end.deadline = LONG;
            let error =
                end.wait(end.recv(Source::Rank(0), label(9, 0, 1), &into, ReceiveMode::Copy)).unwrap_err();
            assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 0), "{error}");
        }
    });
}
