//! Every transport carries a device's memory as it does the host's; the waits for copies ensure it.

use crate::device::Queue;
use crate::error::{Error, ErrorContext, Result};
use crate::memory::Buffer;
use crate::memory::dtype::{DType, Element, ReduceOp};
use crate::testing::late::tests::{Whole, foreign};
use crate::testing::late::{Late, Omission};
use crate::testing::{cases, on_threads, skipped_under_mpi, spawn, spawn_hosts};
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::native::AtOnce;
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Received, Source, Transport, TransportKind};
use crate::waiting::drive::{block_on, waker};
use crate::world::World;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::task::Context;
use std::time::{Duration, Instant};

mod codecs;
mod failures;
mod path;

use codecs::Waiting;

const LENGTHS: [usize; 4] = [0, 1, 1001, 70_003];
const LANDS: [ReceiveMode; 4] = [
    ReceiveMode::Copy,
    ReceiveMode::AtMost,
    ReceiveMode::Reduce(ReduceOp::Sum),
    ReceiveMode::Reduce(ReduceOp::Max),
];

/// One rank's end, and the queues of its buffers.
struct End {
    transport: Rc<dyn Transport>,
    poison: Poison,
    queues: Vec<Queue>,
    sequence: u64,
}

impl End {
    fn new(world: &World, queues: Vec<Queue>) -> Self {
        End { transport: world.open(0).unwrap(), poison: Poison::default(), queues, sequence: 0 }
    }

    fn terms(&self) -> OperationContext<'_> {
        OperationContext {
            transport: &*self.transport,
            poison: &self.poison,
            deadline: Duration::from_secs(60),
        }
    }

    /// A buffer on the next queue.
    fn buffer<T: Element>(&mut self, elements: &[T]) -> Buffer {
        self.queues.rotate_left(1);
        Buffer::from_slice_on(&self.queues[0], elements).unwrap()
    }

    fn label(&mut self, operation: OperationKind, dtype: DType, count: usize) -> Label {
        self.sequence += 1;
        let tag = Tag::new(0, 0, self.sequence, 0).unwrap();
        Label { tag, fingerprint: Fingerprint::new(operation, dtype, count) }
    }

    fn send(&self, label: Label, buffer: &Buffer, len: usize) -> Operation<'_> {
        let to = (self.transport.rank() + 1) % self.transport.size();
        let ticket = self.transport.post_send(to, label, buffer.read(0..len).unwrap());
        Operation::new(self.terms(), ticket, Source::Rank(to), label)
    }

    fn recv(&self, label: Label, buffer: &Buffer, land: ReceiveMode) -> Operation<'_> {
        let size = self.transport.size();
        let from = Source::Rank((self.transport.rank() + size - 1) % size);
        let ticket = self.transport.post_recv(from, label, buffer.write_all().unwrap(), land);
        Operation::new(self.terms(), ticket, from, label)
    }

    fn wait(&self, work: impl Future<Output = Result<Received>>) -> Result<Received> {
        block_on(&*self.transport, work)
    }

    /// Sends recently written values once around the ring, and overwrites them immediately.
    fn around<T: Element>(&mut self, mine: &[T], land: ReceiveMode) -> Result<Vec<T>> {
        let len = mine.len();
        let label = self.label(OperationKind::SendRecv, T::DTYPE, len);
        let given = self.buffer(mine);
        let out = self.buffer(&vec![T::zeroed(); len]);
        let into = self.buffer(&mine.iter().rev().copied().collect::<Vec<T>>());
        // Where sizes are free, a part is sent.
        let sent = if land == ReceiveMode::AtMost { len / 2 } else { len };
        out.write_all()?.copy_from(&given.read_all()?)?;
        let recv = self.recv(label, &into, land);
        let send = self.send(label, &out, sent);
        self.wait(async {
            send.await?;
            recv.await
        })?;
        out.write_all()?.clear();
        let copy = self.buffer(mine);
        copy.write_all()?.copy_from(&into.read_all()?)?;
        into.write_all()?.clear();
        Ok(copy.host::<T>()?.to_vec())
    }
}

fn numbers(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|at| (rank * 31) as f32 - at as f32 * 0.37).collect()
}

/// The results of every length and landing.
fn lands(end: &mut End) -> Result<Vec<Vec<u32>>> {
    let mut results = Vec::new();
    for len in LENGTHS {
        for land in LANDS {
            let got = end.around(&numbers(end.transport.rank(), len), land)?;
            results.push(got.into_iter().map(f32::to_bits).collect());
        }
    }
    let bytes: Vec<u8> = (0..1001).map(|at| at as u8).collect();
    for land in LANDS {
        results.push(end.around(&bytes, land)?.into_iter().map(u32::from).collect());
    }
    Ok(results)
}

fn hosts(ranks: usize) -> Vec<Queue> {
    vec![Queue::host(); ranks]
}

#[test]
fn every_transport_lands_on_devices_what_it_lands_on_the_host() {
    for (transport, ranks) in cases(&[1, 2, 3]) {
        let want = spawn(transport, ranks, |world| lands(&mut End::new(&world, hosts(3))).unwrap());
        for seed in 0..3 {
            let late = Late::new(seed);
            let queues = || (0..3).map(|_| late.queue()).collect();
            let got = spawn(transport, ranks, |world| lands(&mut End::new(&world, queues())).unwrap());
            assert!(got == want, "{transport}, {ranks} ranks, seed {seed}");
        }
        let late = Late::new(7);
        let mixed = |rank: usize| {
            // On odd ranks all buffers are the host's, on even ranks some.
            if rank.is_multiple_of(2) { vec![late.queue(), Queue::host(), late.queue()] } else { hosts(1) }
        };
        let got = spawn(transport, ranks, |world| lands(&mut End::new(&world, mixed(world.rank()))).unwrap());
        assert!(got == want, "{transport}, {ranks} ranks, host and device mixed");
    }
}

#[test]
fn two_hosts_land_alike() {
    if skipped_under_mpi("it pretends to be on two hosts") {
        return;
    }
    let want = spawn(TransportKind::Thread, 2, |world| lands(&mut End::new(&world, hosts(3))).unwrap());
    let late = Late::new(1);
    let queues = || (0..3).map(|_| late.queue()).collect();
    let got = spawn_hosts(&[0, 1], |world| lands(&mut End::new(&world, queues())).unwrap());
    assert!(got == want);
}

/// One collective of the backend on a contribution of each rank, if it has such.
fn native(end: &mut End, operation: OperationKind, len: usize) -> Result<Option<Vec<f32>>> {
    let rank = end.transport.rank();
    let size = end.transport.size();
    let (input, output) = match operation {
        OperationKind::AllGather => (Some(len), len * size),
        OperationKind::ReduceScatter => (Some(len * size), len),
        _ => (None, len),
    };
    let mut label = end.label(operation, DType::F32, output.max(input.unwrap_or(0)));
    match operation {
        OperationKind::Broadcast => label.fingerprint.root = Some(size as u32 - 1),
        OperationKind::AllGather => {}
        _ => label.fingerprint.reduce = Some(ReduceOp::Sum),
    }
    let output = end.buffer(&numbers(rank, output));
    let input = input.map(|input| end.buffer(&numbers(rank, input)));
    let read = || input.as_ref().map(Buffer::read_all).transpose();
    let Some(native) = end.transport.native() else { return Ok(None) };
    let members: Arc<[usize]> = (0..size).collect();
    if !native.offers(&label, &members, read()?.as_ref(), &output.write_all()?) {
        return Ok(None);
    }
    let ticket = native.post(label, &members, read()?, output.write_all()?);
    let done = end.wait(Operation::new(end.terms(), ticket, Source::Any, label))?;
    assert_eq!(done.bytes, 4 * output.len());
    Ok(Some(output.host::<f32>()?.to_vec()))
}

#[test]
fn collectives_of_a_backend_are_staged() {
    const OPERATIONS: [OperationKind; 4] = [
        OperationKind::AllReduce,
        OperationKind::Broadcast,
        OperationKind::AllGather,
        OperationKind::ReduceScatter,
    ];
    let all = |mut end: End| {
        let each = |(operation, len)| native(&mut end, operation, len).unwrap();
        OPERATIONS
            .into_iter()
            .flat_map(|operation| [1, 100, 20_000].map(|len| (operation, len)))
            .map(each)
            .collect()
    };
    for (transport, ranks) in cases(&[2, 3]) {
        let want: Vec<Vec<_>> = spawn(transport, ranks, |world| all(End::new(&world, hosts(2))));
        let late = Late::new(2);
        let queues = || vec![late.queue(), late.queue()];
        let got = spawn(transport, ranks, |world| all(End::new(&world, queues())));
        assert!(got == want, "{transport}, {ranks} ranks");
        assert!(transport != TransportKind::Shm || want[0][0].is_some(), "shared memory has some");
    }
}

#[test]
fn a_wait_that_is_left_out_is_seen_on_every_transport() {
    for transport in on_threads() {
        let ring = |late: &Late| {
            let rank = |world: World| {
                let mut end = End::new(&world, vec![late.queue(), late.queue()]);
                LANDS.map(|land| end.around(&numbers(world.rank(), 1001), land).ok())
            };
            spawn(transport, 1, rank)
        };
        let late = Late::new(0);
        let want = ring(&late);
        let changed = (0..late.queue_waits()).filter(|wait| {
            let omission = Omission::QueueWait(*wait);
            ring(&Late::leaving_out(omission)) != want
        });
        // For every landing: one queue writes the message, and a different one reads the landed values.
        assert!(changed.count() >= 2 * LANDS.len(), "{transport}");
        assert!(ring(&Late::leaving_out(Omission::HostWaits)) != want, "{transport}");
    }
}

#[test]
fn equal_tags_stay_in_order_whatever_has_to_be_copied() {
    let late = Late::new(0);
    spawn(TransportKind::Tcp, 2, |world| {
        let mut end = End::new(&world, vec![late.queue(), Queue::host()]);
        let label = end.label(OperationKind::SendRecv, DType::F32, 1);
        // The first is on the host, the second on the device, and so on.
        let messages: Vec<Buffer> = (0..6u8).map(|at| end.buffer(&[f32::from(at)])).collect();
        let places: Vec<Buffer> = (0..6).map(|_| end.buffer(&[-1.0f32])).collect();
        let sends: Vec<_> = messages.iter().map(|message| end.send(label, message, 1)).collect();
        for (at, into) in places.iter().enumerate() {
            end.wait(end.recv(label, into, ReceiveMode::Copy)).unwrap();
            assert_eq!(*into.host::<f32>().unwrap(), [at as f32]);
        }
        for send in sends {
            end.wait(send).unwrap();
        }
    });
}

#[test]
fn messages_of_a_lane_stay_in_order_whatever_has_to_be_copied() {
    const LONG: usize = 500_000;
    for transport in on_threads() {
        spawn(transport, 2, |world| {
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue()]);
            let first = end.label(OperationKind::SendRecv, DType::F32, LONG);
            let second = end.label(OperationKind::SendRecv, DType::F32, 1);
            let many = end.buffer(&vec![1.0f32; LONG]);
            let one = Buffer::from_slice(&[2.0f32]).unwrap();
            if world.rank() == 0 {
                // The copy of the first takes a while; the second could be sent immediately.
                let sends = [end.send(first, &many, LONG), end.send(second, &one, 1)];
                sends.into_iter().for_each(|send| assert!(end.wait(send).is_ok()));
            } else {
                end.wait(end.recv(first, &many, ReceiveMode::Reduce(ReduceOp::Sum))).unwrap();
                end.wait(end.recv(second, &one, ReceiveMode::Copy)).unwrap();
                assert_eq!(many.host::<f32>().unwrap()[LONG - 1], 2.0);
            }
        });
    }
}

/// Without the bell, a rank whose only message is being copied would sleep until its park ends.
#[test]
fn the_end_of_a_copy_ends_the_park() {
    const PARK: Duration = Duration::from_secs(60);
    const LEN: usize = 300_000;
    for transport in on_threads() {
        spawn(transport, 1, |world| {
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue()]);
            let label = end.label(OperationKind::SendRecv, DType::F32, LEN);
            let buffer = end.buffer(&vec![1.0f32; LEN]);
            let start = Instant::now();
            let ticket = end.transport.post_send(0, label, buffer.read_all().unwrap());
            let into = Buffer::zeroed(DType::F32, LEN).unwrap();
            let recv =
                end.transport.post_recv(Source::Rank(0), label, into.write_all().unwrap(), ReceiveMode::Copy);
            let waker = waker();
            for ticket in [ticket, recv] {
                while end.transport.poll(ticket, &mut Context::from_waker(&waker)).is_pending() {
                    if !end.transport.progress() {
                        end.transport.park(PARK);
                    }
                }
            }
            assert!(start.elapsed() < PARK, "{transport}");
        });
    }
}

/// Keeps the queue of `x` busy until the test also reaches the barrier.
fn keep_busy(x: &Buffer) -> Arc<Barrier> {
    let busy = Arc::new(Barrier::new(2));
    let [from, to] = [DType::F32, DType::U8].map(|dtype| x.zeroed_same_device(dtype, 1).unwrap());
    let work = Waiting(Arc::clone(&busy));
    to.write_all().unwrap().encode(&work, &from.read_all().unwrap(), 0).unwrap().unwrap();
    busy
}

/// Posts an all-reduce, or a barrier without elements.
fn post_native<'a>(end: &'a End, label: Label, buffer: &Buffer) -> Operation<'a> {
    let native = end.transport.native().unwrap();
    let members = (0..end.transport.size()).collect();
    let ticket = native.post(label, &members, None, buffer.write_all().unwrap());
    Operation::new(end.terms(), ticket, Source::Any, label)
}

/// One rank's memory is a device's, the other's the host's: each posts in the order of the program.
#[test]
fn operations_of_a_lane_begin_in_order_whatever_has_to_be_copied() {
    const LEN: usize = 500;
    spawn(TransportKind::Shm, 2, |world| {
        let late = Late::new(0);
        let queue = if world.rank() == 0 { late.queue() } else { Queue::host() };
        let mut end = End::new(&world, vec![queue]);
        let first = end.buffer(&[1.0f32; LEN]);
        let [second, third] = [(); 2].map(|()| Buffer::from_slice(&[2.0f32; 2]).unwrap());
        let mut all_reduce = |len| {
            let mut label = end.label(OperationKind::AllReduce, DType::F32, len);
            label.fingerprint.reduce = Some(ReduceOp::Sum);
            label
        };
        let labels = [all_reduce(LEN), all_reduce(2), all_reduce(2)];
        let send = end.label(OperationKind::SendRecv, DType::F32, 1);
        let message = Buffer::from_slice(&[7.0f32]).unwrap();
        let into = Buffer::from_slice(&[0.0f32]).unwrap();
        let at_once = |label: &Label| {
            let native = end.transport.native().unwrap();
            native.at_once(label, third.write_all().unwrap().bytes_mut())
        };
        let busy = (world.rank() == 0).then(|| keep_busy(&first));
        let natives = [post_native(&end, labels[0], &first), post_native(&end, labels[1], &second)];
        if let Some(busy) = busy {
            assert!(matches!(at_once(&labels[2]), AtOnce::Not), "two are not posted yet");
            busy.wait();
        }
        let recv = end.recv(send, &into, ReceiveMode::Copy);
        let send = end.send(send, &message, 1);
        for native in natives {
            end.wait(native).unwrap();
        }
        end.wait(send).unwrap();
        end.wait(recv).unwrap();
        assert_eq!(first.host::<f32>().unwrap()[LEN - 1], 2.0);
        assert_eq!(*second.host::<f32>().unwrap(), [4.0; 2]);
        assert_eq!(*into.host::<f32>().unwrap(), [7.0]);
    });
}

#[test]
fn ranks_with_different_devices_register_together() {
    let late = Late::new(0);
    for transport in on_threads() {
        for device in [vec![0], vec![1], vec![0, 1], vec![]] {
            spawn(transport, 2, |world| {
                let on_device = device.contains(&world.rank());
                let queue = if on_device { late.queue() } else { Queue::host() };
                let mut end = End::new(&world, vec![queue.clone()]);
                let limit = Duration::from_secs(60);
                for round in 1..3 {
                    let buffer = end.transport.register(&queue, DType::F32, 70_000, limit).unwrap();
                    assert_eq!(buffer.queue(), queue);
                    buffer
                        .write_all()
                        .unwrap()
                        .copy_from(&end.buffer(&[1.0f32; 70_000]).read_all().unwrap())
                        .unwrap();
                    let into = end.buffer(&[0.0f32; 70_000]);
                    let label = end.label(OperationKind::SendRecv, DType::F32, 70_000);
                    let recv = end.recv(label, &into, ReceiveMode::Copy);
                    end.wait(end.send(label, &buffer, 70_000)).unwrap();
                    end.wait(recv).unwrap();
                    assert_eq!(into.host::<f32>().unwrap()[round], 1.0);
                    // By the backend itself, where it has such collectives.
                    if end.transport.native().is_some() {
                        let mut label = end.label(OperationKind::AllReduce, DType::F32, 70_000);
                        label.fingerprint.reduce = Some(ReduceOp::Sum);
                        end.wait(post_native(&end, label, &buffer)).unwrap();
                        assert_eq!(buffer.host::<f32>().unwrap()[69_999], 2.0);
                    }
                }
            });
        }
    }
}

#[test]
fn what_is_reduced_where_it_lands_needs_no_new_memory_for_each_message() {
    for transport in on_threads() {
        spawn(transport, 1, |world| {
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue(), late.queue()]);
            let sums = [(); 2].map(|()| end.buffer(&[0.0f32; 1000]));
            let numbers = end.buffer(&[1.0f32; 1000]);
            let mut allocations = Vec::new();
            for (sum, len) in sums.iter().chain(&sums).chain(&sums).zip([1000, 1000, 1, 1, 1000, 999]) {
                let label = end.label(OperationKind::SendRecv, DType::F32, len);
                let into = sum.write(0..len).unwrap();
                let ticket =
                    end.transport.post_recv(Source::Rank(0), label, into, ReceiveMode::Reduce(ReduceOp::Sum));
                end.wait(end.send(label, &numbers, len)).unwrap();
                end.wait(Operation::new(end.terms(), ticket, Source::Rank(0), label)).unwrap();
                allocations.push(late.allocations());
            }
            // Three for the buffers, and one of each queue for all messages.
            assert_eq!(allocations, [4, 5, 5, 5, 5, 5], "{transport}");
            for (sum, last) in sums.iter().zip([2.0, 1.0]) {
                assert_eq!(sum.host::<f32>().unwrap()[..2], [3.0, 2.0]);
                assert_eq!(sum.host::<f32>().unwrap()[998..], [2.0, last]);
            }
        });
    }
}

#[test]
fn a_cancelled_message_keeps_memory_of_another_library_until_it_is_copied() {
    for transport in on_threads() {
        spawn(transport, 1, |world| {
            let late = Late::new(0);
            let mut end = End::new(&world, vec![late.queue()]);
            let label = end.label(OperationKind::SendRecv, DType::F32, 1000);
            let (x, owner) = foreign(&late, &end.queues[0], 1000);
            // The copy is behind work that takes a while.
            let busy = keep_busy(&x);
            let ticket = end.transport.post_send(0, label, x.read_all().unwrap());
            drop(x);
            assert!(owner.try_recv().is_err(), "{transport}: it is being sent");
            end.transport.cancel(ticket);
            assert!(owner.try_recv().is_err(), "{transport}: it is being copied");
            busy.wait();
            end.queues[0].check().unwrap();
            let there = owner.try_recv().unwrap();
            assert_ne!(there, std::thread::current().id(), "{transport}");
        });
    }
}

#[test]
fn cancelled_operations_release_their_memory() {
    let late = Late::new(0);
    for transport in on_threads() {
        spawn(transport, 2, |world| {
            let mut end = End::new(&world, vec![late.queue()]);
            let label = end.label(OperationKind::SendRecv, DType::F32, 100_000);
            let buffer = end.buffer(&numbers(0, 100_000));
            let from = Source::Rank(1 - world.rank());
            let ticket = end.transport.post_recv(from, label, buffer.write_all().unwrap(), ReceiveMode::Copy);
            assert!(matches!(buffer.read_all(), Err(Error::Busy { .. })));
            end.transport.cancel(ticket);
            assert!(buffer.read_all().is_ok());
            let ticket = end.transport.post_send(world.rank(), label, buffer.read_all().unwrap());
            assert!(matches!(buffer.write_all(), Err(Error::Busy { .. })));
            end.transport.cancel(ticket);
            assert!(buffer.write_all().is_ok());
        });
    }
}
