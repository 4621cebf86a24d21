//! Messages of every length, on every lane and socket, arrive as they were sent.

use super::{End, label, numbers, on_all, on_lane};
use hexagram_physical::dtype::{DType, ReduceOp};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::tag::Tag;
use hexagram_physical::testing::{skipped_under_mpi, spawn_as};
use hexagram_physical::transport::{Label, Land, Source};
use hexagram_physical::{Buffer, JoinOptions, TransportKind};

#[test]
fn every_transport_carries_every_length_on_concurrent_lanes() {
    const LANES: usize = 3;
    on_all(&[1, 2, 3, 4, 5, 8], |end| {
        let rank = end.rank();
        let size = end.transport.size();
        let next = (rank + 1) % size;
        let previous = (rank + size - 1) % size;
        // Every lane has every length, at a time when the others have another one.
        let len = |length: usize, lane: usize| [0, 1, 4095, (1 << 20) + 3][(length + lane) % 4];
        for length in 0..4 {
            let label = |lane| {
                let count = len(length, lane);
                let tag = Tag::new(0, lane, length as u64, 0).unwrap();
                Label { tag, fingerprint: Fingerprint::new(OperationKind::SendRecv, DType::F32, count) }
            };
            let mine: Vec<_> = (0..LANES).map(|lane| numbers(rank, lane, len(length, lane))).collect();
            let buffers = || mine.iter().map(|mine| Buffer::from_slice(mine).unwrap()).collect::<Vec<_>>();
            let out = buffers();
            let into = buffers();
            // The last lane adds; half of the receives are posted when messages are on their way already.
            let land = |lane| if lane + 1 == LANES { Land::Reduce(ReduceOp::Sum) } else { Land::Copy };
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
                let mut want = numbers(previous, lane, len(length, lane));
                if lane + 1 == LANES {
                    want.iter_mut().zip(&mine[lane]).for_each(|(a, b)| *a += b);
                }
                assert!(*into.host::<f32>().unwrap() == want, "lane {lane}, length {}", want.len());
            }
        }
    });
}

#[test]
fn several_sockets_carry_one_stream() {
    if skipped_under_mpi("it is about sockets") {
        return;
    }
    const LEN: usize = (1 << 20) + 3;
    let with = |sockets| {
        let sockets = Some(sockets);
        JoinOptions { transport: TransportKind::Tcp, sockets, ..JoinOptions::default() }
    };
    // Of two ranks that differ, the lower number holds.
    spawn_as(&[with(3), with(2), with(4)], |world| {
        let end = End::new(world);
        let size = end.transport.size();
        let label = label(0, 0, LEN);
        let out = Buffer::from_slice(&numbers(end.rank(), 0, LEN)).unwrap();
        let into: Vec<_> = (0..size).map(|_| Buffer::zeroed(DType::F32, LEN).unwrap()).collect();
        let sends: Vec<_> = (0..size).map(|peer| end.send(peer, label, &out)).collect();
        for (peer, into) in into.iter().enumerate() {
            end.wait(end.recv(Source::Rank(peer), label, into, Land::Copy)).unwrap();
            assert!(*into.host::<f32>().unwrap() == numbers(peer, 0, LEN), "from {peer}");
        }
        end.wait(async {
            for send in sends {
                send.await.unwrap();
            }
        });
        give_up_and_send_another(&end, &out);
    });
}

/// A send given up half-way is completed behind the back of its caller, on all sockets, so that the next arrives.
fn give_up_and_send_another(end: &End, out: &Buffer) {
    let rank = end.rank();
    let size = end.transport.size();
    let next = (rank + 1) % size;
    let previous = (rank + size - 1) % size;
    let view = out.read(0..out.len()).unwrap();
    let ticket = end.transport.post_send(next, label(1, 0, out.len()), view);
    end.transport.cancel(ticket);
    let last = on_lane(1, 1);
    let one = Buffer::from_slice(&[7f32]).unwrap();
    let got = Buffer::zeroed(DType::F32, 1).unwrap();
    let send = end.send(next, last, &one);
    end.wait(end.recv(Source::Rank(previous), last, &got, Land::Copy)).unwrap();
    end.wait(send).unwrap();
    assert_eq!(got.host::<f32>().unwrap()[0], 7.0);
}

#[test]
fn everyone_sends_to_everyone_at_every_length() {
    on_all(&[1, 2, 3, 5, 8], |end| {
        let size = end.transport.size();
        for (sequence, len) in [0, 1, 17, 4096, 300_001 / size].into_iter().enumerate() {
            let out = Buffer::from_slice(&numbers(end.rank(), sequence, len)).unwrap();
            let into: Vec<_> = (0..size).map(|_| Buffer::zeroed(DType::F32, len).unwrap()).collect();
            let label = label(sequence as u64, 0, len);
            let receives: Vec<_> =
                (0..size).map(|peer| end.recv(Source::Rank(peer), label, &into[peer], Land::Copy)).collect();
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

#[test]
fn concurrent_tags_never_mix() {
    on_all(&[2, 4], |end| {
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
            end.wait(end.recv(Source::Rank(previous), label, &into, Land::Copy)).unwrap();
            assert_eq!(*into.host::<f32>().unwrap(), numbers(previous, tag, 100 + tag));
        }
        end.wait(async {
            for send in sends {
                send.await.unwrap();
            }
        });
    });
}

#[test]
fn any_source_takes_each_sender_once() {
    on_all(&[4], |end| {
        let label = label(0, 0, 1);
        if end.rank() != 0 {
            let out = Buffer::from_slice(&[end.rank() as f32]).unwrap();
            end.wait(end.send(0, label, &out)).unwrap();
            return;
        }
        let mut from = Vec::new();
        for _ in 1..4 {
            let into = Buffer::zeroed(DType::F32, 1).unwrap();
            let got = end.wait(end.recv(Source::Any, label, &into, Land::Copy)).unwrap();
            assert_eq!(into.host::<f32>().unwrap()[0], got.peer as f32);
            from.push(got.peer);
        }
        from.sort_unstable();
        assert_eq!(from, [1, 2, 3]);
    });
}

#[test]
fn traffic_counts_header_and_payload() {
    const HEADER: u64 = 48;
    on_all(&[2], |end| {
        let peer = 1 - end.rank();
        let out = Buffer::zeroed(DType::F32, 25).unwrap();
        let into = Buffer::zeroed(DType::F32, 25).unwrap();
        let send = end.send(peer, label(0, 0, 25), &out);
        end.wait(end.recv(Source::Rank(peer), label(0, 0, 25), &into, Land::Copy)).unwrap();
        end.wait(send).unwrap();
        assert_eq!(end.world.traffic().bytes_sent(), HEADER + 100);
        assert_eq!(end.world.traffic().messages_sent(), 1);
    });
}

#[test]
fn operations_run_under_a_foreign_executor() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake};
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    on_all(&[2], |end| {
        let peer = 1 - end.rank();
        let out = Buffer::from_slice(&[1.0f32]).unwrap();
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        let mut operation = std::pin::pin!(async {
            let send = end.send(peer, label(0, 0, 1), &out);
            end.recv(Source::Rank(peer), label(0, 0, 1), &into, Land::Copy).await.unwrap();
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
