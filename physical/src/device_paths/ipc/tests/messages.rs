//! Messages between GPUs have the bits of the host's, in any order of sends, receives and collectives; and what goes
//! wrong with one.

use super::failures::hanging;
use super::{End, Queue, numbers, on_host_with, queue, sum_of_floats};
use crate::error::Result;
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::testing::spawn;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::Operation;
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source, TransportKind};
use crate::waiting::drive::block_on;
use std::sync::Barrier;

/// Returns the label of a message on a lane.
fn label(lane: usize, dtype: DType, len: usize) -> Label {
    let fingerprint = Fingerprint::new(OperationKind::SendRecv, dtype, len);
    Label { tag: Tag::new(0, lane, 0, 0).unwrap(), fingerprint }
}

impl End {
    /// Posts a message to a rank.
    pub(super) fn send(&self, to: usize, label: Label, from: &Buffer) -> Operation<'_> {
        let ticket = self.transport.post_send(to, label, from.read_all().unwrap());
        Operation::new(self.terms(), ticket, Source::Rank(to), label)
    }

    /// Posts the receive of a message.
    pub(super) fn receive(
        &self,
        from: Source,
        label: Label,
        to: &Buffer,
        land: ReceiveMode,
    ) -> Operation<'_> {
        let ticket = self.transport.post_recv(from, label, to.write_all().unwrap(), land);
        Operation::new(self.terms(), ticket, from, label)
    }

    /// Returns a buffer of a rank's numbers, in ordinary memory of the next queue.
    fn numbers(&self, dtype: DType, rank: usize, len: usize) -> Buffer {
        let made = self.made.replace(self.made.get() + 1);
        let buffer = Buffer::zeroed_on(&self.queues[made % self.queues.len()], dtype, len).unwrap();
        let host = Buffer::zeroed(dtype, len).unwrap();
        host.write_all().unwrap().bytes_mut().copy_from_slice(&numbers(dtype, rank, len));
        buffer.write_all().unwrap().copy_from(&host.read_all().unwrap()).unwrap();
        buffer
    }

    /// Returns the bytes of a buffer on any device.
    fn bytes(&self, buffer: &Buffer) -> Vec<u8> {
        let host = Buffer::zeroed(buffer.dtype(), buffer.len()).unwrap();
        host.write_all().unwrap().copy_from(&buffer.read_all().unwrap()).unwrap();
        host.read_all().unwrap().bytes().to_vec()
    }
}

const LENGTHS: [usize; 4] = [0, 1, 1003, 70_001];

/// Sends a message of each kind to the next rank, all at a time; receives are posted in another order. Returns what the
/// memory of the receives has in the end.
fn around(end: &End) -> Vec<Vec<u8>> {
    let rank = end.transport.rank();
    let size = end.transport.size();
    let next = (rank + 1) % size;
    let before = Source::Rank((rank + size - 1) % size);
    let lands = [
        ReceiveMode::Copy,
        ReceiveMode::Reduce(ReduceOp::Sum),
        ReceiveMode::Reduce(ReduceOp::Max),
        ReceiveMode::AtMost,
    ];
    let kind = |lane: usize| {
        let dtype = DType::ALL[lane % DType::ALL.len()];
        let land = lands[lane % lands.len()];
        let len = LENGTHS[lane / lands.len() % LENGTHS.len()];
        (dtype, land, len, if land == ReceiveMode::AtMost { len + 5 } else { len })
    };
    let lanes = 0..lands.len() * LENGTHS.len() * 2;
    let begin_send = |lane| {
        let (dtype, _, len, _) = kind(lane);
        let from = end.numbers(dtype, rank, len);
        let operation = end.send(next, label(lane, dtype, len), &from);
        // What is enqueued behind the message may write at once.
        (operation, from)
    };
    let begin_receive = |lane| {
        let (dtype, land, len, room) = kind(lane);
        let to = end.numbers(dtype, rank + 7, room);
        let source = if lane % 3 == 0 { Source::Any } else { before };
        (end.receive(source, label(lane, dtype, len), &to, land), to, len)
    };
    let sent: Vec<_> = lanes.clone().map(begin_send).collect();
    let received: Vec<_> = lanes.rev().map(begin_receive).collect();
    for (operation, from) in sent {
        end.wait(operation).unwrap();
        from.write_all().unwrap().clear();
    }
    let take = |(operation, to, len): (Operation<'_>, Buffer, usize)| {
        let got = end.wait(operation).unwrap();
        assert_eq!(got.bytes, len * to.dtype().size());
        let copy = to.copied().unwrap();
        to.write_all().unwrap().clear();
        end.bytes(&copy)
    };
    received.into_iter().map(take).collect()
}

#[test]
fn messages_have_the_bits_of_the_host() {
    if queue().is_none() {
        return;
    }
    for (ranks, transport) in
        [(2, TransportKind::Thread), (3, TransportKind::Shm), (4, TransportKind::Thread)]
    {
        let want = on_host_with(ranks, around);
        spawn(transport, ranks, |world| {
            let end = End::new(&world, (0..3).map(|_| queue().unwrap()).collect());
            let payload = world.traffic().payload_sent();
            let sent = world.traffic().bytes_sent_by(TransportKind::Ipc);
            assert!(around(&end) == want[world.rank()], "{transport}, {ranks} ranks");
            let payload = world.traffic().payload_sent() - payload;
            let sent = world.traffic().bytes_sent_by(TransportKind::Ipc) - sent;
            let bytes: usize = want[world.rank()].iter().map(Vec::len).sum();
            // Of messages that may be shorter, five elements were not sent.
            assert!(sent == payload && payload < bytes as u64 && payload > bytes as u64 * 9 / 10);
        });
    }
}

/// Each rank begins an all-reduce and messages in an order of its own, on one stream.
#[test]
fn messages_and_collectives_do_not_wait_for_each_other_in_a_circle() {
    if queue().is_none() {
        return;
    }
    for transport in [TransportKind::Thread, TransportKind::Shm] {
        spawn(transport, 3, |world| {
            let end = End::of_gpu(&world).unwrap();
            let rank = world.rank();
            for round in 0..6 {
                let label =
                    |lane| Label { tag: Tag::new(0, lane, round, 0).unwrap(), ..label(1, DType::F32, 100) };
                let all = Label { tag: Tag::new(0, 9, round, 0).unwrap(), fingerprint: sum_of_floats(100) };
                let ones = || end.buffer(DType::F32, bytemuck::cast_slice(&[1f32; 100]), round % 2 == 0);
                let sum = ones();
                let from = ones();
                let to = ones();
                let after = (rank + round as usize) % 3;
                let begin = |at: usize| match at {
                    0 => end.post(all, None, &sum),
                    1 => end.send((rank + 1) % 3, label(rank), &from),
                    _ => {
                        let before = (rank + 2) % 3;
                        let land = ReceiveMode::Reduce(ReduceOp::Sum);
                        end.receive(Source::Rank(before), label(before), &to, land)
                    }
                };
                let posted = [after, (after + 1) % 3, (after + 2) % 3].map(begin);
                for operation in posted {
                    end.wait(operation).unwrap();
                }
                assert_eq!(*sum.host::<f32>().unwrap(), [3.0; 100]);
                assert_eq!(*to.host::<f32>().unwrap(), [2.0; 100]);
            }
        });
    }
}

/// Rank 0 sends two messages on different streams; between them it starts an all-reduce that waits for rank 2.
#[test]
fn messages_do_not_overtake_each_other_while_a_collective_waits_for_a_rank() {
    if queue().is_none() {
        return;
    }
    // The fake driver draws an order of the streams each time.
    for _ in 0..8 {
        let posted = Barrier::new(3);
        let sent = Barrier::new(2);
        spawn(TransportKind::Thread, 3, |world| {
            let end = End::new(&world, (0..3).map(|_| queue().unwrap()).collect());
            let rank = world.rank();
            // Each on a stream of its own.
            let first = end.numbers(DType::F32, rank, 1000);
            let sum = end.buffer(DType::F32, bytemuck::cast_slice(&[1f32; 100]), false);
            let second = end.numbers(DType::F32, rank + 7, 1000);
            let exchange = |lane, buffer| {
                let label = label(lane, DType::F32, 1000);
                let operation = match rank {
                    0 => end.send(1, label, buffer),
                    1 => end.receive(Source::Rank(0), label, buffer, ReceiveMode::Copy),
                    _ => return,
                };
                end.wait(operation).unwrap();
            };
            exchange(0, &first);
            let all = end.post(end.label(sum_of_floats(100)), None, &sum);
            posted.wait();
            exchange(1, &second);
            if rank != 1 {
                sent.wait();
            }
            end.wait(all).unwrap();
            if rank == 1 {
                assert!(end.bytes(&first) == numbers(DType::F32, 0, 1000));
                assert!(end.bytes(&second) == numbers(DType::F32, 7, 1000));
            }
        });
    }
}

/// A receive that is given up once its sender knows of it: the message comes all the same, and the next one, too.
#[test]
fn a_receive_that_is_given_up_holds_nobody_up() {
    if queue().is_none() {
        return;
    }
    spawn(TransportKind::Shm, 2, |world| {
        let end = End::of_gpu(&world).unwrap();
        let label = |lane| label(lane, DType::F32, 10);
        let from = end.numbers(DType::F32, 0, 10);
        if world.rank() == 0 {
            for lane in [0, 1] {
                end.wait(end.send(1, label(lane), &from)).unwrap();
            }
            return;
        }
        let to = Buffer::zeroed_on(&end.queues[0], DType::F32, 10).unwrap();
        let ticket =
            end.transport.post_recv(Source::Rank(0), label(0), to.write_all().unwrap(), ReceiveMode::Copy);
        while end.transport.moved(ticket) == 0 {
            end.transport.progress();
        }
        end.transport.cancel(ticket);
        end.wait(end.receive(Source::Rank(0), label(1), &to, ReceiveMode::Copy)).unwrap();
        assert!(end.bytes(&to) == end.bytes(&from));
    });
}

#[test]
fn a_message_of_another_size_is_a_mismatch() {
    if queue().is_none() {
        return;
    }
    let attached = Barrier::new(2);
    let errors = spawn(TransportKind::Thread, 2, |world| {
        let end = End::of_gpu(&world).unwrap();
        attached.wait();
        let label = label(0, DType::F32, 10);
        let buffer = end.numbers(DType::F32, 0, 10 + world.rank());
        let operation = match world.rank() {
            0 => end.send(1, label, &buffer),
            _ => end.receive(Source::Rank(0), label, &buffer, ReceiveMode::Copy),
        };
        end.wait(operation).unwrap_err().to_string()
    });
    assert!(
        errors.iter().all(|error| error.contains("10 × f32") && error.contains("11 × f32")),
        "{errors:?}"
    );
}

#[test]
fn a_sender_that_is_killed_is_named_soon_by_who_waits_for_its_message() {
    let Some((first, said, mut second)) = hanging("message, killed") else { return };
    second.kill().unwrap();
    let text = super::failures::failure(first, said);
    assert!(text.starts_with("rank 1 (") && text.contains("died") && text.contains("send/recv"), "{text}");
    second.wait().unwrap();
}

#[test]
fn a_message_that_is_never_copied_is_a_deadline() {
    let Some((first, said, mut second)) = hanging("message, late") else { return };
    let text = super::failures::failure(first, said);
    assert!(text.contains("no answer from rank 1") && text.contains("within 1s"), "{text}");
    second.kill().unwrap();
    second.wait().unwrap();
}

/// An endpoint that closes keeps what it has sent until that is taken.
#[test]
fn a_message_of_an_endpoint_that_closes_arrives() {
    if queue().is_none() {
        return;
    }
    for transport in [TransportKind::Thread, TransportKind::Shm] {
        spawn(transport, 2, |world| {
            let end = End::of_gpu(&world).unwrap();
            let label = label(0, DType::F32, 1000);
            let buffer = end.numbers(DType::F32, world.rank(), 1000);
            if world.rank() == 0 {
                let sent = end.send(1, label, &buffer);
                end.wait(sent).unwrap();
                return;
            }
            let received = end.receive(Source::Rank(0), label, &buffer, ReceiveMode::Copy);
            block_on(&*end.transport, received).unwrap();
            assert!(end.bytes(&buffer) == numbers(DType::F32, 0, 1000), "{transport}");
        });
    }
}

/// Plays the message of a job in which something fails: from rank 1, which hangs, to rank 0.
pub(super) fn play(end: &End, queue: &Queue) -> Result<Buffer> {
    let buffer = Buffer::zeroed_on(queue, DType::F32, 100_000).unwrap();
    if end.transport.rank() == 1 {
        // The driver of this rank is set to hang here.
        buffer.write_all().unwrap().scale(2.0).unwrap();
    }
    let label = label(0, DType::F32, 100_000);
    let operation = match end.transport.rank() {
        0 => end.receive(Source::Rank(1), label, &buffer, ReceiveMode::Reduce(ReduceOp::Sum)),
        _ => end.send(0, label, &buffer),
    };
    end.wait(operation)?;
    Ok(buffer)
}
