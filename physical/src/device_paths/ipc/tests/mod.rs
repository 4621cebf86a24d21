//! GPUs that read each other's memory have the bits of the host's shared memory, as threads and as processes. Without a
//! driver, be it the fake one, each of these says that it is skipped.

mod failures;
mod memory;
mod messages;
mod processes;
mod queues;

use crate::device::Queue;
use crate::device::cuda::Cuda;
use crate::error::Result;
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::system::library::Library;
use crate::testing::spawn;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, Received, Source, Transport, TransportKind};
use crate::waiting::drive::block_on;
use crate::world::World;
use half::{bf16, f16};
use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Returns a queue of the first GPU; says so if there is none.
fn queue() -> Option<Queue> {
    let queue = Cuda::new(0).and_then(|gpu| gpu.queue());
    if let Err(error) = &queue {
        let _ = writeln!(std::io::stderr(), "skipped: no CUDA device: {error}");
    }
    queue.ok()
}

/// Returns true if the driver is the fake one, which can be set to go wrong; says so if it is not.
fn is_fake() -> bool {
    let library = Library::open(&["libcuda.so.1"], "");
    let is_fake = library.and_then(|library| library.function("hexagramFakeCount\0")).is_ok();
    if !is_fake {
        let _ = writeln!(std::io::stderr(), "skipped: no fake CUDA driver");
    }
    is_fake
}

/// One rank's endpoint, on the host or on a GPU.
struct End {
    transport: Rc<dyn Transport>,
    poison: Poison,
    /// Queues of the buffers in turn; none of them is the host's, or all are.
    queues: Vec<Queue>,
    made: Cell<usize>,
    sequence: Cell<u64>,
}

impl End {
    fn new(world: &World, queues: Vec<Queue>) -> Self {
        let transport = world.open(0).unwrap();
        if !queues[0].is_host() {
            assert_eq!(
                transport.devices().unwrap().attach(&queues[0], LONG).unwrap(),
                Some(TransportKind::Ipc)
            );
        }
        Self::over(transport, queues)
    }

    fn over(transport: Rc<dyn Transport>, queues: Vec<Queue>) -> Self {
        let made = Cell::new(0);
        let sequence = Cell::new(0);
        End { transport, poison: Poison::default(), queues, made, sequence }
    }

    fn of_gpu(world: &World) -> Option<Self> {
        Some(Self::new(world, vec![queue()?]))
    }

    /// Returns a buffer of these bytes, on the next queue. Where this is the host, all have to be registered, as shared
    /// memory has no native collectives otherwise.
    fn buffer(&self, dtype: DType, bytes: &[u8], is_registered: bool) -> Buffer {
        let made = self.made.replace(self.made.get() + 1);
        let queue = &self.queues[made % self.queues.len()];
        let len = bytes.len() / dtype.size();
        let buffer = if is_registered || queue.is_host() {
            self.transport.register(queue, dtype, len, LONG).unwrap()
        } else {
            Buffer::zeroed_on(queue, dtype, len).unwrap()
        };
        let host = Buffer::zeroed(dtype, len).unwrap();
        host.write_all().unwrap().bytes_mut().copy_from_slice(bytes);
        buffer.write_all().unwrap().copy_from(&host.read_all().unwrap()).unwrap();
        buffer
    }

    fn label(&self, fingerprint: Fingerprint) -> Label {
        let sequence = self.sequence.replace(self.sequence.get() + 1);
        Label { tag: Tag::new(0, 0, sequence, 0).unwrap(), fingerprint }
    }

    fn terms(&self) -> OperationContext<'_> {
        OperationContext { transport: &*self.transport, poison: &self.poison, deadline: LONG }
    }

    /// Posts an operation, which has to be offered.
    fn post(&self, label: Label, input: Option<&Buffer>, output: &Buffer) -> Operation<'_> {
        let native = self.transport.native().unwrap();
        let input = || input.map(|input| input.read_all().unwrap());
        let members: Arc<[usize]> = (0..self.transport.size()).collect();
        assert!(
            native.offers(&label, &members, input().as_ref(), &output.write_all().unwrap()),
            "{}",
            label.fingerprint
        );
        let ticket = native.post(label, &members, input(), output.write_all().unwrap());
        Operation::new(self.terms(), ticket, Source::Any, label)
    }

    fn wait(&self, operation: Operation<'_>) -> Result<Received> {
        block_on(&*self.transport, operation)
    }

    /// Returns the bytes of this rank's result.
    fn run(&self, case: &Case) -> Vec<u8> {
        let size = self.transport.size();
        let (input, output) = match case.operation {
            OperationKind::AllGather => (Some(case.len), case.len * size),
            OperationKind::ReduceScatter => (Some(case.len * size), case.len),
            _ => (None, case.len),
        };
        let count =
            if case.operation == OperationKind::AllGather { case.len } else { input.unwrap_or(output) };
        let mut fingerprint = Fingerprint::new(case.operation, case.dtype, count);
        match case.operation {
            OperationKind::Broadcast => fingerprint.root = Some(size as u32 - 1),
            OperationKind::AllGather => {}
            _ => fingerprint.reduce = Some(case.op),
        }
        let rank = self.transport.rank();
        let mine = numbers(case.dtype, rank, input.unwrap_or(output));
        let sent = input.map(|_| self.buffer(case.dtype, &mine, case.is_registered));
        let nothing = vec![7; output * case.dtype.size()];
        let result = if sent.is_some() { &nothing } else { &mine };
        let result = self.buffer(case.dtype, result, case.is_registered);
        let got = self.wait(self.post(self.label(fingerprint), sent.as_ref(), &result)).unwrap();
        assert_eq!(got.bytes, output * case.dtype.size());
        if let Some(sent) = sent {
            // What is enqueued behind the operation may write at once.
            sent.write_all().unwrap().clear();
        }
        let copy = result.copied().unwrap();
        result.write_all().unwrap().clear();
        let host = Buffer::zeroed(case.dtype, output).unwrap();
        host.write_all().unwrap().copy_from(&copy.read_all().unwrap()).unwrap();
        host.read_all().unwrap().bytes().to_vec()
    }
}

/// A collective.
#[derive(Debug, Clone, Copy)]
struct Case {
    operation: OperationKind,
    dtype: DType,
    op: ReduceOp,
    len: usize,
    is_registered: bool,
}

/// Returns numbers of a rank, some of them special.
fn numbers(dtype: DType, rank: usize, len: usize) -> Vec<u8> {
    let number = |at: usize| {
        let drawn = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(rank as u32 + 7) % 4001;
        match (at + 13 * rank) % 101 {
            97 if dtype.is_float() => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0][at % 4],
            _ => (drawn as f64 - 2000.0) / 16.0,
        }
    };
    let all = (0..len).map(number);
    match dtype {
        DType::U8 | DType::I8 | DType::Bool => all.map(|number| number as i64 as u8).collect(),
        DType::I16 => all.flat_map(|number| (number as i64 as i16).to_ne_bytes()).collect(),
        DType::I32 => all.flat_map(|number| (number as i32).to_ne_bytes()).collect(),
        DType::I64 => all.flat_map(|number| (number as i64).to_ne_bytes()).collect(),
        DType::F16 => all.flat_map(|number| f16::from_f64(number).to_ne_bytes()).collect(),
        DType::BF16 => all.flat_map(|number| bf16::from_f64(number).to_ne_bytes()).collect(),
        DType::F32 => all.flat_map(|number| (number as f32).to_ne_bytes()).collect(),
        DType::F64 => all.flat_map(f64::to_ne_bytes).collect(),
    }
}

/// Returns collectives of every type, reduction and order, with and without registered memory.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        let reduces = ReduceOp::ALL.into_iter().filter(|op| op.check(dtype).is_ok());
        for (nth, op) in reduces.enumerate() {
            let case = |operation, len, is_registered| Case { operation, dtype, op, len, is_registered };
            let is_registered = |at: usize| (nth + at).is_multiple_of(2);
            // Small, of the middle, where the order is a tree's, and large.
            for (at, len) in [1003, 70_001 / dtype.size(), 300_007 / dtype.size()].into_iter().enumerate() {
                cases.push(case(OperationKind::AllReduce, len, is_registered(at)));
            }
            cases.push(case(OperationKind::ReduceScatter, 1003, is_registered(0)));
        }
        let op = ReduceOp::Sum;
        let case =
            |len, is_registered| Case { operation: OperationKind::Broadcast, dtype, op, len, is_registered };
        cases.extend([case(5, true), case(5000, false), case(0, false)]);
        cases.push(Case { operation: OperationKind::AllGather, ..case(1003, dtype.size() > 2) });
    }
    cases
}

/// Returns the results of the host's shared memory.
fn on_host(ranks: usize, cases: &[Case]) -> Vec<Vec<Vec<u8>>> {
    on_host_with(ranks, |end| cases.iter().map(|case| end.run(case)).collect())
}

/// Returns what ranks on the host come to.
fn on_host_with<R: Send>(ranks: usize, body: impl Fn(&End) -> R + Sync) -> Vec<R> {
    spawn(TransportKind::Shm, ranks, |world| body(&End::new(&world, vec![Queue::host()])))
}

#[test]
fn collectives_of_gpus_have_the_bits_of_shared_memory() {
    if queue().is_none() {
        return;
    }
    let cases = cases();
    for (ranks, transport) in
        [(2, TransportKind::Thread), (3, TransportKind::Shm), (4, TransportKind::Thread)]
    {
        let want = on_host(ranks, &cases);
        spawn(transport, ranks, |world| {
            let end = End::of_gpu(&world).unwrap();
            for (case, want) in cases.iter().zip(&want[world.rank()]) {
                assert!(end.run(case) == *want, "{transport}, {ranks} ranks, {case:?}");
            }
            let bytes = world.traffic().bytes_sent_by(TransportKind::Ipc);
            assert!(bytes > 0, "bytes count by path");
        });
    }
}

/// More contributions than parameters go by a table.
#[test]
fn many_ranks_combine_in_the_same_order() {
    if queue().is_none() {
        return;
    }
    let case = |op, len| Case {
        operation: OperationKind::AllReduce,
        dtype: DType::F32,
        op,
        len,
        is_registered: true,
    };
    let cases = [case(ReduceOp::Sum, 20_001), case(ReduceOp::Mean, 500), case(ReduceOp::Max, 1)];
    for ranks in [5, 8, 11] {
        let want = on_host(ranks, &cases);
        spawn(TransportKind::Thread, ranks, |world| {
            let end = End::of_gpu(&world).unwrap();
            for (case, want) in cases.iter().zip(&want[world.rank()]) {
                assert!(end.run(case) == *want, "{ranks} ranks, {case:?}");
            }
        });
    }
}

/// Of several operations on one stream, those that are enqueued first come first on all ranks, though ranks post them in
/// another order; and queues wait for each other.
#[test]
fn lanes_in_flight_neither_mix_nor_wait_for_each_other_for_ever() {
    const LANES: usize = 6;
    if queue().is_none() {
        return;
    }
    for queues in [1, 3] {
        spawn(TransportKind::Thread, 3, |world| {
            let queues = (0..queues).map(|_| queue().unwrap()).collect();
            let end = End::new(&world, queues);
            for round in 0..5 {
                let mut lanes: Vec<usize> = (0..LANES).collect();
                lanes.rotate_left(world.rank() * 2 % LANES);
                let begin = |lane: usize| {
                    let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, 1000);
                    let fingerprint = Fingerprint { reduce: Some(ReduceOp::Sum), ..fingerprint };
                    let label = Label { tag: Tag::new(0, lane, round, 0).unwrap(), fingerprint };
                    let mine = vec![(lane + 1) as f32; 1000];
                    let buffer = end.buffer(DType::F32, bytemuck::cast_slice(&mine), lane.is_multiple_of(2));
                    (end.post(label, None, &buffer), buffer, lane)
                };
                let posted: Vec<_> = lanes.into_iter().map(begin).collect();
                for (operation, buffer, lane) in posted {
                    end.wait(operation).unwrap();
                    let sum = 3.0 * (lane + 1) as f32;
                    assert!(buffer.host::<f32>().unwrap().iter().all(|number| *number == sum), "lane {lane}");
                }
            }
        });
    }
}

#[test]
fn two_ranks_read_what_has_to_be_read_of_each_other_and_no_more() {
    if queue().is_none() {
        return;
    }
    spawn(TransportKind::Thread, 2, |world| {
        let end = End::of_gpu(&world).unwrap();
        let len = 1 << 16;
        let case = Case {
            operation: OperationKind::AllReduce,
            dtype: DType::F32,
            op: ReduceOp::Sum,
            len,
            is_registered: true,
        };
        let sent = || world.traffic().bytes_sent_by(TransportKind::Ipc);
        let before = sent();
        let carried = world.traffic().payload_sent();
        end.run(&case);
        assert_eq!(sent() - before, 4 * len as u64, "half of it to combine, half of it to copy");
        let carried = world.traffic().payload_sent() - carried;
        assert_eq!(carried, 4 * len as u64, "what ranks agree on is not a payload");
    });
}

fn sum_of_floats(len: usize) -> Fingerprint {
    let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, len);
    Fingerprint { reduce: Some(ReduceOp::Sum), ..fingerprint }
}

/// Ranks that come to the operations of two endpoints in different orders enqueue them in one, on one stream.
#[test]
fn two_endpoints_on_a_queue_do_not_wait_for_each_other() {
    let Some(_) = queue() else { return };
    for transport in [TransportKind::Thread, TransportKind::Shm] {
        spawn(transport, 3, |world| {
            let queue = queue().unwrap();
            let attached = |channel| {
                let transport = world.open(channel).unwrap();
                assert_eq!(
                    transport.devices().unwrap().attach(&queue, LONG).unwrap(),
                    Some(TransportKind::Ipc)
                );
                End::over(transport, vec![queue.clone()])
            };
            let ends = [attached(0), attached(1)];
            for round in 0..4 {
                let mut order = [0, 1];
                order.rotate_left((world.rank() + round) % 2);
                let begin = |at: usize| {
                    let end: &End = &ends[at];
                    let buffer =
                        end.buffer(DType::F32, bytemuck::cast_slice(&[at as f32 + 1.0; 100]), round < 2);
                    (end, end.post(end.label(sum_of_floats(100)), None, &buffer), buffer)
                };
                let posted = order.map(begin);
                let buffers = posted.map(|(end, operation, buffer)| {
                    end.wait(operation).unwrap();
                    buffer
                });
                for (buffer, at) in buffers.iter().zip(order) {
                    let sum = 3.0 * (at as f32 + 1.0);
                    assert!(buffer.host::<f32>().unwrap().iter().all(|number| *number == sum), "{transport}");
                }
            }
        });
    }
}

/// As the engine and its caller have them: endpoints on threads of their own, and one stream.
#[test]
fn two_threads_with_a_queue_do_not_wait_for_each_other() {
    let Some(_) = queue() else { return };
    spawn(TransportKind::Shm, 2, |world| {
        let queue = queue().unwrap();
        let repeat = |channel| {
            let transport = world.open(channel).unwrap();
            assert_eq!(transport.devices().unwrap().attach(&queue, LONG).unwrap(), Some(TransportKind::Ipc));
            let end = End::over(transport, vec![queue.clone()]);
            let buffer = end.buffer(DType::F32, bytemuck::cast_slice(&[1f32; 1000]), channel == 0);
            for _ in 0..20 {
                end.wait(end.post(end.label(sum_of_floats(1000)), None, &buffer)).unwrap();
            }
            let sum = 2f32.powi(20);
            assert!(buffer.host::<f32>().unwrap().iter().all(|number| *number == sum));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| repeat(1));
            repeat(0);
        });
    });
}
