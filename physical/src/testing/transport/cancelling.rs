//! Operations that are cancelled, or leaked: the memory is free, and the streams of other operations stay intact.

use super::{Matrix, label, numbers};
use crate::memory::dtype::DType;
use crate::transport::{ReceiveMode, Source};
use crate::{Buffer, Error};
use std::time::{Duration, Instant};

/// Cancels a receive whose message still arrives.
pub fn a_cancelled_receive_is_never_written_and_its_memory_is_free_at_once(on: &Matrix) {
    on.all(&[2], |end| {
        if end.rank() == 0 {
            let into = Buffer::zeroed(DType::F32, 50_000).unwrap();
            drop(end.recv(Source::Rank(1), label(0, 0, 50_000), &into, ReceiveMode::Copy));
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
            // Either it was buffered on the way, or the verdict is that rank 0 gave up.
            if let Err(error) = end.wait(end.send(0, label(0, 0, 50_000), &out)) {
                assert!(error.to_string().contains("rank 0"), "{error}");
            }
        }
    });
}

/// Leaks a receive whose message still arrives.
pub fn a_leaked_operation_never_reaches_freed_memory(on: &Matrix) {
    on.all(&[2], |end| {
        let label = label(0, 0, 1000);
        if end.rank() == 0 {
            let into = Buffer::zeroed(DType::F32, 1000).unwrap();
            std::mem::forget(end.recv(Source::Rank(1), label, &into, ReceiveMode::Copy));
            // The view outlives both the future and the buffer, so the late write has memory to land in.
            drop(into);
            let done = Buffer::zeroed(DType::F32, 1).unwrap();
            end.wait(end.recv(Source::Rank(1), self::label(1, 0, 1), &done, ReceiveMode::Copy)).unwrap();
        } else {
            let out = Buffer::from_slice(&numbers(1, 0, 1000)).unwrap();
            let done = Buffer::zeroed(DType::F32, 1).unwrap();
            end.wait(end.send(0, label, &out)).unwrap();
            end.wait(end.send(0, self::label(1, 0, 1), &done)).unwrap();
        }
    });
}
