//! What every transport promises, tested the same way on each: matching, landing, cancelling, failing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use hexagram_physical::dtype::{DType, ReduceOp};
use hexagram_physical::fingerprint::{Fingerprint, OperationKind};
use hexagram_physical::operation::{Operation, Poison, Terms};
use hexagram_physical::tag::Tag;
use hexagram_physical::testing::{cases, skipped_under_mpi, spawn, spawn_as, spawn_hosts};
use hexagram_physical::transport::{Label, Land, Source};
use hexagram_physical::{Buffer, Element, Error, JoinOptions, Transport, TransportKind, World, drive};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// An endpoint with what its operations need.
struct End {
    transport: Rc<dyn Transport>,
    poison: Poison,
    deadline: Duration,
    world: World,
}

impl End {
    fn new(world: World) -> Self {
        let transport = world.open(0).unwrap();
        End { transport, poison: Poison::default(), deadline: LONG, world }
    }

    fn terms(&self) -> Terms<'_> {
        Terms { transport: &*self.transport, poison: &self.poison, deadline: self.deadline }
    }

    fn send(&self, to: usize, label: Label, buffer: &Buffer) -> Operation<'_> {
        let ticket = self.transport.post_send(to, label, buffer.read(0..buffer.len()).unwrap());
        Operation::new(self.terms(), ticket, Source::Rank(to), label)
    }

    fn recv(&self, source: Source, label: Label, buffer: &Buffer, land: Land) -> Operation<'_> {
        let view = buffer.write(0..buffer.len()).unwrap();
        let ticket = self.transport.post_recv(source, label, view, land);
        Operation::new(self.terms(), ticket, source, label)
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        drive::block_on(&*self.transport, future)
    }

    fn rank(&self) -> usize {
        self.transport.rank()
    }
}

fn label(sequence: u64, step: usize, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, count);
    Label { tag: Tag::new(0, 0, sequence, step).unwrap(), fingerprint }
}

/// The only message of a lane.
fn on_lane(lane: usize, count: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, DType::F32, count);
    Label { tag: Tag::new(0, lane, 0, 0).unwrap(), fingerprint }
}

/// Elements that tell sender, message and position apart.
fn numbers(rank: usize, message: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (rank * 31 + message * 7) as f32 + i as f32 * 0.5).collect()
}

/// Opens the endpoints of a world's ranks and has all of them wait for the last: nobody errs while others are still opening
/// theirs, who then could not. Ranks that MPI started are other processes, which open together anyway.
fn opening(transport: TransportKind, ranks: usize) -> impl Fn(World) -> End + Sync {
    let here = if TransportKind::ALL.contains(&transport) { ranks } else { 1 };
    let open = std::sync::Barrier::new(here);
    move |world| {
        let end = End::new(world);
        open.wait();
        end
    }
}

/// On every transport, and on the mixed one also with the ranks spread over two hosts, alternately.
fn on_all(ranks: &[usize], test: impl Fn(End) + Sync) {
    for (transport, ranks) in cases(ranks) {
        let open = opening(transport, ranks);
        spawn(transport, ranks, |world| test(open(world)));
        if transport == TransportKind::Mixed {
            let hosts: Vec<usize> = (0..ranks).map(|rank| rank % 2).collect();
            spawn_hosts(&hosts, |world| test(open(world)));
        }
    }
}

#[test]
fn every_transport_carries_every_length_on_concurrent_lanes() {
    const LANES: usize = 3;
    on_all(&[1, 2, 3, 4, 5, 8], |end| {
        let (rank, size) = (end.rank(), end.transport.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
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
            let (out, into) = (buffers(), buffers());
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
        let (transport, sockets) = (TransportKind::Tcp, Some(sockets));
        JoinOptions { transport, sockets, ..JoinOptions::default() }
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
        // A send given up half-way is completed behind the back of its caller, on all sockets.
        let ticket = end.transport.post_send(
            (end.rank() + 1) % size,
            self::label(1, 0, LEN),
            out.read(0..LEN).unwrap(),
        );
        end.transport.cancel(ticket);
        let last = on_lane(1, 1);
        let (one, got) = (Buffer::from_slice(&[7f32]).unwrap(), Buffer::zeroed(DType::F32, 1).unwrap());
        let send = end.send((end.rank() + 1) % size, last, &one);
        end.wait(end.recv(Source::Rank((end.rank() + size - 1) % size), last, &got, Land::Copy)).unwrap();
        end.wait(send).unwrap();
        assert_eq!(got.host::<f32>().unwrap()[0], 7.0);
    });
}

#[test]
fn a_mixed_world_counts_bytes_by_path() {
    if skipped_under_mpi("it is about the mixed transport") {
        return;
    }
    const HEADER: u64 = 48;
    const LEN: usize = 1000;
    // By rank: how many peers are on its host.
    for (hosts, near) in [
        (&[0, 0, 1, 1][..], &[1, 1, 1, 1][..]),
        (&[0, 1, 0, 0, 2], &[2, 0, 2, 2, 0]),
        (&[0, 1, 2], &[0, 0, 0]),
        (&[4, 4, 4], &[2, 2, 2]),
    ] {
        spawn_hosts(hosts, |world| {
            let end = End::new(world);
            let (rank, size) = (end.rank(), end.transport.size());
            let label = label(0, 0, LEN);
            let out = Buffer::from_slice(&numbers(rank, 0, LEN)).unwrap();
            let peers = || (0..size).filter(|peer| *peer != rank);
            let sends: Vec<_> = peers().map(|peer| end.send(peer, label, &out)).collect();
            for peer in peers() {
                let into = Buffer::zeroed(DType::F32, LEN).unwrap();
                end.wait(end.recv(Source::Rank(peer), label, &into, Land::Copy)).unwrap();
                assert_eq!(*into.host::<f32>().unwrap(), numbers(peer, 0, LEN));
            }
            end.wait(async {
                for send in sends {
                    send.await.unwrap();
                }
            });
            let message = HEADER + 4 * LEN as u64;
            let far = (size - 1 - near[rank]) as u64;
            assert_eq!(end.world.traffic().bytes_sent_by(TransportKind::Shm), near[rank] as u64 * message);
            assert_eq!(end.world.traffic().bytes_sent_by(TransportKind::Tcp), far * message);
        });
    }
}

#[test]
fn one_sleep_is_ended_by_memory_by_sockets_and_by_the_bell() {
    if skipped_under_mpi("it is about the mixed transport") {
        return;
    }
    // Far longer than anything takes, so that a wake-up that is missed fails the test.
    const LONGER: Duration = Duration::from_secs(30);
    spawn_hosts(&[0, 0, 1], |world| {
        let end = End::new(world);
        let asleep = |what: &str, done: &dyn Fn() -> bool| {
            let started = Instant::now();
            while !done() {
                if !end.transport.progress() {
                    end.transport.park(LONGER);
                }
                assert!(started.elapsed() < LONGER, "{what} did not end the sleep");
            }
        };
        for round in 0..20 {
            let (mine, all) = (label(round, end.rank(), 1), [1, 2].map(|from| label(round, from, 1)));
            if end.rank() != 0 {
                let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
                end.wait(end.recv(Source::Rank(0), label(round, 0, 1), &buffer, Land::Copy)).unwrap();
                // The sleeper has most likely fallen asleep by then, and has to be woken whether or not.
                std::thread::sleep(Duration::from_millis(2 * end.rank() as u64));
                end.wait(end.send(0, mine, &buffer)).unwrap();
                continue;
            }
            let buffer = Buffer::zeroed(DType::F32, 1).unwrap();
            let into: Vec<_> = (0..2).map(|_| Buffer::zeroed(DType::F32, 1).unwrap()).collect();
            let mut tickets: Vec<_> = [1, 2]
                .into_iter()
                .zip(all.iter().zip(&into))
                .map(|(from, (label, into))| {
                    let view = into.write(0..1).unwrap();
                    end.transport.post_recv(Source::Rank(from), *label, view, Land::Copy)
                })
                .collect();
            for peer in [1, 2] {
                end.wait(end.send(peer, label(round, 0, 1), &buffer)).unwrap();
            }
            for (what, ticket) in ["memory", "a socket"].into_iter().zip(tickets.drain(..)) {
                let mut context = std::task::Context::from_waker(drive::waker());
                let poll = std::cell::RefCell::new(&mut context);
                asleep(what, &|| end.transport.poll(ticket, &mut poll.borrow_mut()).is_ready());
            }
            let (bell, rung) = (end.transport.bell(), std::sync::atomic::AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(2));
                    rung.store(true, std::sync::atomic::Ordering::SeqCst);
                    bell.ring();
                });
                asleep("the bell", &|| rung.load(std::sync::atomic::Ordering::SeqCst));
            });
        }
    });
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
        let (next, previous) = ((end.rank() + 1) % size, (end.rank() + size - 1) % size);
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

fn lands<T: Element>(end: &End, sequence: u64, mine: &[T], op: ReduceOp, want: &[T]) {
    let peer = 1 - end.rank();
    let (out, into) = (Buffer::from_slice(mine).unwrap(), Buffer::from_slice(mine).unwrap());
    let label = label(sequence, 0, mine.len());
    let send = end.send(peer, label, &out);
    end.wait(end.recv(Source::Rank(peer), label, &into, Land::Reduce(op))).unwrap();
    end.wait(send).unwrap();
    assert_eq!(&*into.host::<T>().unwrap(), want);
}

#[test]
fn messages_are_reduced_where_they_land() {
    on_all(&[2], |end| {
        lands(&end, 0, &[3u8, 250], ReduceOp::Sum, &[6, 244]);
        lands(&end, 1, &[2i64, -3], ReduceOp::Product, &[4, 9]);
        let large: Vec<f64> = (0..100_003).map(f64::from).collect();
        let doubled: Vec<f64> = large.iter().map(|x| x * 2.0).collect();
        lands(&end, 2, &large, ReduceOp::Sum, &doubled);
        lands(&end, 3, &[1.5f32], ReduceOp::Max, &[1.5]);
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
        let (out, into) = (Buffer::zeroed(DType::F32, 25).unwrap(), Buffer::zeroed(DType::F32, 25).unwrap());
        let send = end.send(peer, label(0, 0, 25), &out);
        end.wait(end.recv(Source::Rank(peer), label(0, 0, 25), &into, Land::Copy)).unwrap();
        end.wait(send).unwrap();
        assert_eq!(end.world.traffic().bytes_sent(), HEADER + 100);
        assert_eq!(end.world.traffic().messages_sent(), 1);
    });
}

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
            let (out, done) =
                (Buffer::from_slice(&numbers(1, 0, 1000)).unwrap(), Buffer::zeroed(DType::F32, 1).unwrap());
            end.wait(end.send(0, label, &out)).unwrap();
            end.wait(end.send(0, self::label(1, 0, 1), &done)).unwrap();
        }
    });
}

#[test]
fn disagreement_is_an_error_that_prints_both_sides() {
    on_all(&[2], |end| {
        let count = 10 + end.rank();
        let peer = 1 - end.rank();
        let (out, into) =
            (Buffer::zeroed(DType::F32, count).unwrap(), Buffer::zeroed(DType::F32, count).unwrap());
        let send = end.send(peer, label(7, 0, count), &out);
        let error =
            end.wait(end.recv(Source::Rank(peer), label(7, 0, count), &into, Land::Copy)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("send/recv(10 × f32)") && text.contains("send/recv(11 × f32)"), "{text}");
        drop(send);
    });
}

#[test]
fn a_message_of_another_size_is_an_error_that_prints_both_sizes() {
    on_all(&[2], |end| {
        let (mine, theirs) = (10 + end.rank(), 11 - end.rank());
        // Both sides say the same of the operation, as where sizes follow from other data.
        let (label, peer) = (label(0, 0, 10), 1 - end.rank());
        let [out, into] = [mine, mine].map(|len| Buffer::zeroed(DType::F32, len).unwrap());
        let send = end.send(peer, label, &out);
        let error = end.wait(end.recv(Source::Rank(peer), label, &into, Land::Copy)).unwrap_err().to_string();
        for count in [mine, theirs] {
            assert!(error.contains(&format!("send/recv({count} × f32)")), "{error}");
        }
        drop(send);
    });
}

#[test]
fn nobody_answering_is_a_deadline_that_names_the_peer() {
    on_all(&[2], |mut end| {
        end.deadline = Duration::from_millis(150);
        let into = Buffer::zeroed(DType::F32, 1).unwrap();
        if end.rank() == 0 {
            let error = end.wait(end.recv(Source::Rank(1), label(0, 0, 1), &into, Land::Copy)).unwrap_err();
            assert!(
                matches!(&error, Error::Deadline { waiting_for: Some(peer), .. } if peer.rank == 1),
                "{error}"
            );
        } else {
            end.deadline = LONG;
            let error = end.wait(end.recv(Source::Rank(0), label(9, 0, 1), &into, Land::Copy)).unwrap_err();
            assert!(matches!(&error, Error::PeerFailed { culprit, .. } if culprit.rank == 0), "{error}");
        }
    });
}

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
            let (label, numbers) = (label(0, 0, 1000), numbers(1, 0, 1000));
            let buffer = Buffer::from_slice(&numbers).unwrap();
            if end.rank() == 1 {
                end.wait(end.send(0, label, &buffer)).unwrap();
                sent.wait();
                return;
            }
            end.deadline = Duration::from_millis(100);
            let into = Buffer::zeroed(DType::F32, 1000).unwrap();
            let mut receive = pin!(end.recv(Source::Rank(1), label, &into, Land::Copy));
            sent.wait();
            let mut context = Context::from_waker(drive::waker());
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
            let mut receive = std::pin::pin!(end.recv(Source::Rank(0), label, &buffer, Land::Copy));
            let mut context = std::task::Context::from_waker(drive::waker());
            while receive.as_mut().poll(&mut context).is_pending() {
                end.transport.progress();
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
}

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

#[test]
fn a_world_that_cannot_open_a_channel_says_whose_fault_it_is() {
    if skipped_under_mpi("it is about connecting") {
        return;
    }
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let errors = spawn(transport, 4, |world| {
            if world.rank() == 1 {
                world.health().give_up("gave up before it opened");
                return None;
            }
            // Over tcp a connection may be made before the other side looks at it; then the first operation fails.
            world.open(0).err().map(|error| error.to_string())
        });
        assert!(errors[0].is_some(), "rank 1 never called rank 0");
        for error in errors.into_iter().flatten() {
            assert!(error.contains("rank 1") && error.contains("before it opened"), "{transport}: {error}");
        }
    }
}

#[test]
fn strangers_at_the_data_port_neither_delay_nor_enter() {
    if skipped_under_mpi("it is about sockets") {
        return;
    }
    spawn(TransportKind::Tcp, 2, |world| {
        // Every listening socket of this process, which is what a port scan would find.
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let listening = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let ports = listening.filter_map(|line| line.split_whitespace().nth(1)?.rsplit_once(':'));
        let ports: Vec<u16> = ports.filter_map(|(_, port)| u16::from_str_radix(port, 16).ok()).collect();
        let strangers: Vec<_> =
            ports.iter().filter_map(|port| std::net::TcpStream::connect(("127.0.0.1", *port)).ok()).collect();
        assert!(!strangers.is_empty());
        let mut scanner = strangers[0].try_clone().unwrap();
        let _ = std::io::Write::write_all(&mut scanner, &[0; 200]);
        let end = End::new(world);
        let (out, into) = (Buffer::from_slice(&[1f32]).unwrap(), Buffer::zeroed(DType::F32, 1).unwrap());
        let peer = 1 - end.rank();
        let send = end.send(peer, label(0, 0, 1), &out);
        end.wait(end.recv(Source::Rank(peer), label(0, 0, 1), &into, Land::Copy)).unwrap();
        end.wait(send).unwrap();
        drop(strangers);
    });
}

#[test]
fn channels_are_apart_and_open_once() {
    for (transport, ranks) in cases(&[3]) {
        spawn(transport, ranks, |world| {
            // Opened from two threads and in both orders, as a training and a communication thread may.
            std::thread::scope(|scope| {
                let second = scope.spawn(|| world.open(7).unwrap().rank());
                assert_eq!(world.open(3).unwrap().rank(), world.rank());
                assert_eq!(second.join().unwrap(), world.rank());
            });
            assert!(matches!(world.open(3), Err(Error::Usage { .. })));
        });
    }
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
        let (out, into) = (Buffer::from_slice(&[1.0f32]).unwrap(), Buffer::zeroed(DType::F32, 1).unwrap());
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
