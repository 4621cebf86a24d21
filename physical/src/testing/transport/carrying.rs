//! Messages of every length, on every lane and socket, arrive as they were sent.

use super::{Matrix, label, numbers, on_lane};
use crate::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source};

/// Sends messages of every length on three lanes at a time, from every rank to the next. Each lane has every length,
/// at a time when the others have a different one.
pub fn every_transport_carries_every_length_on_concurrent_lanes(on: &Matrix) {
    const LANES: usize = 3;
    on.all(&[1, 2, 3, 4, 5, 8], |end| {
        let rank = end.rank();
        let size = end.transport.size();
        let next = (rank + 1) % size;
        let previous = (rank + size - 1) % size;
        for length in 0..4 {
            let len = |lane: usize| [0, 1, 4095, (1 << 20) + 3][(length + lane) % 4];
            let tag = |lane| Tag::new(0, lane, length as u64, 0).unwrap();
            let label = |lane| Label { tag: tag(lane), ..on_lane(lane, len(lane)) };
            let mine: Vec<_> = (0..LANES).map(|lane| numbers(rank, lane, len(lane))).collect();
            let buffers = || mine.iter().map(|mine| Buffer::from_slice(mine).unwrap()).collect::<Vec<_>>();
            let out = buffers();
            let into = buffers();
            // The last lane adds; half of the receives are posted after messages have been sent.
            let land =
                |lane| if lane + 1 == LANES { ReceiveMode::Reduce(ReduceOp::Sum) } else { ReceiveMode::Copy };
            let recv = |lane| end.recv(Source::Rank(previous), label(lane), &into[lane], land(lane));
            let first = recv(0);
            let sends: Vec<_> =
                (0..LANES).rev().map(|lane| end.send(next, label(lane), &out[lane])).collect();
            end.wait(async {
                for lane in (1..LANES).rev() {
                    recv(lane).await.unwrap();
                }
                first.await.unwrap();
                for send in sends {
                    send.await.unwrap();
                }
            });
            for (lane, into) in into.iter().enumerate() {
                let mut want = numbers(previous, lane, len(lane));
                if lane + 1 == LANES {
                    want.iter_mut().zip(&mine[lane]).for_each(|(a, b)| *a += b);
                }
                assert!(*into.host::<f32>().unwrap() == want, "lane {lane}, length {}", want.len());
            }
        }
    });
}

/// Sends messages of every length from every rank to every rank, itself included.
pub fn everyone_sends_to_everyone_at_every_length(on: &Matrix) {
    on.all(&[1, 2, 3, 5, 8], |end| {
        let size = end.transport.size();
        for (sequence, len) in [0, 1, 17, 4096, 300_001 / size].into_iter().enumerate() {
            let out = Buffer::from_slice(&numbers(end.rank(), sequence, len)).unwrap();
            let into: Vec<_> = (0..size).map(|_| Buffer::zeroed(DType::F32, len).unwrap()).collect();
            let label = label(sequence as u64, 0, len);
            let receives: Vec<_> = (0..size)
                .map(|peer| end.recv(Source::Rank(peer), label, &into[peer], ReceiveMode::Copy))
                .collect();
            let sends: Vec<_> = (0..size).map(|peer| end.send(peer, label, &out)).collect();
            end.wait(async {
                for operation in receives.into_iter().chain(sends) {
                    operation.await.unwrap();
                }
            });
            for (peer, got) in into.iter().enumerate() {
                assert_eq!(*got.host::<f32>().unwrap(), numbers(peer, sequence, len), "from {peer}");
            }
        }
    });
}

/// Receives forty messages in the opposite order of their sending.
pub fn concurrent_tags_never_mix(on: &Matrix) {
    on.all(&[2, 4], |end| {
        const TAGS: usize = 40;
        let size = end.transport.size();
        let next = (end.rank() + 1) % size;
        let previous = (end.rank() + size - 1) % size;
        let out: Vec<_> =
            (0..TAGS).map(|tag| Buffer::from_slice(&numbers(end.rank(), tag, 100 + tag)).unwrap()).collect();
        // Sent forwards, received backwards: nearly all arrive before their receive is posted.
        let sends: Vec<_> =
            out.iter().enumerate().map(|(tag, out)| end.send(next, on_lane(tag, 100 + tag), out)).collect();
        for tag in (0..TAGS).rev() {
            let into = Buffer::zeroed(DType::F32, 100 + tag).unwrap();
            let label = on_lane(tag, 100 + tag);
            end.wait(end.recv(Source::Rank(previous), label, &into, ReceiveMode::Copy)).unwrap();
            assert_eq!(*into.host::<f32>().unwrap(), numbers(previous, tag, 100 + tag));
        }
        end.wait(async {
            for send in sends {
                send.await.unwrap();
            }
        });
    });
}

/// Receives from any rank, once from each.
pub fn any_source_takes_each_sender_once(on: &Matrix) {
    on.all(&[4], |end| {
        let label = label(0, 0, 1);
        if end.rank() != 0 {
            let out = Buffer::from_slice(&[end.rank() as f32]).unwrap();
            end.wait(end.send(0, label, &out)).unwrap();
            return;
        }
        let mut from = Vec::new();
        for _ in 1..4 {
            let into = Buffer::zeroed(DType::F32, 1).unwrap();
            let got = end.wait(end.recv(Source::Any, label, &into, ReceiveMode::Copy)).unwrap();
            assert_eq!(into.host::<f32>().unwrap()[0], got.peer as f32);
            from.push(got.peer);
        }
        from.sort_unstable();
        assert_eq!(from, [1, 2, 3]);
    });
}

/// Compares the counts of bytes and messages with the header and the payload.
pub fn traffic_counts_header_and_payload(on: &Matrix) {
    const HEADER: u64 = 48;
    on.all(&[2], |end| {
        let peer = 1 - end.rank();
        let out = Buffer::zeroed(DType::F32, 25).unwrap();
        let into = Buffer::zeroed(DType::F32, 25).unwrap();
        let send = end.send(peer, label(0, 0, 25), &out);
        end.wait(end.recv(Source::Rank(peer), label(0, 0, 25), &into, ReceiveMode::Copy)).unwrap();
        end.wait(send).unwrap();
        assert_eq!(end.world.traffic().bytes_sent(), HEADER + 100);
        assert_eq!(end.world.traffic().messages_sent(), 1);
    });
}

/// Polls operations with a custom waker.
pub fn operations_run_under_a_foreign_executor(on: &Matrix) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake};
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    on.all(&[2], |end| {
        let peer = 1 - end.rank();
        let out = Buffer::from_slice(&[1.0f32]).unwrap();
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        let mut operation = std::pin::pin!(async {
            let send = end.send(peer, label(0, 0, 1), &out);
            end.recv(Source::Rank(peer), label(0, 0, 1), &into, ReceiveMode::Copy).await.unwrap();
            send.await.unwrap();
        });
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Arc::clone(&flag).into();
        loop {
            assert!(flag.0.swap(false, Ordering::SeqCst), "a pending operation must have woken its task");
            if let Poll::Ready(()) = operation.as_mut().poll(&mut Context::from_waker(&waker)) {
                break;
            }
            std::thread::yield_now();
        }
    });
}
