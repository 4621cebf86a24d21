//! Operations that are given up, or forgotten: the memory is free, and the others' streams stay whole.

use super::{label, numbers, on_all, on_lane, opening};
use hexagram_physical::dtype::DType;
use hexagram_physical::testing::{skipped_under_mpi, spawn};
use hexagram_physical::transport::{Land, Source};
use hexagram_physical::{Buffer, Error, TransportKind};
use std::time::{Duration, Instant};

#[test]
fn a_cancelled_receive_is_never_written_and_its_memory_is_free_at_once() {
    on_all(&[2], |end| {
        if end.rank() == 0 {
            let into = Buffer::zeroed(DType::F32, 50_000).unwrap();
            drop(end.recv(Source::Rank(1), label(0, 0, 50_000), &into, Land::Copy));
            assert!(into.host::<f32>().is_ok(), "the view is released");
            assert!(matches!(
                end.poison.check(end.world.health(), &label(1, 0, 1)),
                Err(Error::Poisoned { .. })
            ));
            // The message arrives nevertheless, and must go nowhere.
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(50) {
                end.transport.progress();
            }
            assert!(into.host::<f32>().unwrap().iter().all(|x| *x == 0.0));
        } else {
            let out = Buffer::from_slice(&numbers(1, 0, 50_000)).unwrap();
            // Either it was buffered on the way, or the verdict says that rank 0 gave up.
            if let Err(error) = end.wait(end.send(0, label(0, 0, 50_000), &out)) {
                assert!(error.to_string().contains("rank 0"), "{error}");
            }
        }
    });
}

#[test]
fn a_send_cancelled_half_way_leaves_the_stream_whole() {
    if skipped_under_mpi("it is about streams") {
        return;
    }
    // Only streams have a half-way.
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let open = opening(transport, 2);
        spawn(transport, 2, |world| {
            let end = open(world);
            const LARGE: usize = 8 << 20;
            let small = on_lane(1, 3);
            if end.rank() == 0 {
                let out = Buffer::from_slice(&numbers(0, 0, LARGE)).unwrap();
                let ticket = end.transport.post_send(1, label(0, 0, LARGE), out.read(0..LARGE).unwrap());
                end.transport.cancel(ticket);
                assert!(end.transport.kind() == transport);
                drop(out);
                let out = Buffer::from_slice(&[1.0f32, 2.0, 3.0]).unwrap();
                end.wait(end.send(1, small, &out)).unwrap();
            } else {
                let into = Buffer::zeroed(DType::F32, 3).unwrap();
                end.wait(end.recv(Source::Rank(0), small, &into, Land::Copy)).unwrap();
                assert_eq!(*into.host::<f32>().unwrap(), [1.0, 2.0, 3.0]);
            }
        });
    }
}

#[test]
fn a_leaked_operation_never_reaches_freed_memory() {
    on_all(&[2], |end| {
        let label = label(0, 0, 1000);
        if end.rank() == 0 {
            let into = Buffer::zeroed(DType::F32, 1000).unwrap();
            std::mem::forget(end.recv(Source::Rank(1), label, &into, Land::Copy));
            // The view outlives both the future and the buffer, so the late write has memory to land in.
            drop(into);
            let done = Buffer::zeroed(DType::F32, 1).unwrap();
            end.wait(end.recv(Source::Rank(1), self::label(1, 0, 1), &done, Land::Copy)).unwrap();
        } else {
            let out = Buffer::from_slice(&numbers(1, 0, 1000)).unwrap();
            let done = Buffer::zeroed(DType::F32, 1).unwrap();
            end.wait(end.send(0, label, &out)).unwrap();
            end.wait(end.send(0, self::label(1, 0, 1), &done)).unwrap();
        }
    });
}
