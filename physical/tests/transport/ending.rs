//! Ranks that leave, panic or fail: which rank is named, and which messages still arrive.

use super::{End, label};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn};
use hexagram_physical::transport::{ReceiveMode, Source};
use hexagram_physical::{Buffer, TransportKind};
use std::time::{Duration, Instant};

#[test]
fn a_failure_is_told_once_and_the_end_is_prompt() {
    if skipped_under_mpi("it is about the control connections") {
        return;
    }
    // If verdicts were echoed back and forth, the control threads of a larger world would block in each other's
    // writes.
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let open = std::sync::Barrier::new(8);
        spawn(transport, 8, |world| {
            let health = world.health().clone();
            let end = End::new(world);
            open.wait();
            if end.rank() == 5 {
                health.fail_self("gave up on purpose");
            }
            let into = Buffer::zeroed(DType::F32, 1).unwrap();
            let peer = (end.rank() + 1) % 8;
            let error =
                end.wait(end.recv(Source::Rank(peer), label(0, 0, 1), &into, ReceiveMode::Copy)).unwrap_err();
            assert!(error.to_string().contains("gave up on purpose"), "{error}");
            let started = Instant::now();
            drop(end);
            assert!(started.elapsed() < Duration::from_secs(30), "leaving was stuck");
        });
    }
}
