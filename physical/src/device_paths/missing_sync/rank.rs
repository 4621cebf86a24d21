//! Two ranks that are threads, with memory on GPUs, and a way for one to be late.

use super::{Trial, configure, end_wrong};
use crate::device::Queue;
use crate::device::cuda::Cuda;
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::testing::spawn;
use crate::transport::fingerprint::{Fingerprint, OperationKind};
use crate::transport::operation::{Operation, OperationContext, Poison};
use crate::transport::tag::Tag;
use crate::transport::{Label, ReceiveMode, Source, Ticket, Transport, TransportKind};
use crate::waiting::drive::block_on;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Elements of all buffers here.
pub(super) const LEN: usize = 100;

const LONG: Duration = Duration::from_secs(60);

/// Returns a buffer of equal numbers, on a new queue without other work.
pub(super) fn filled(gpu: &Cuda, number: f32) -> Buffer {
    let buffer = Buffer::from_slice_on(&gpu.queue().unwrap(), &[number; LEN]).unwrap();
    buffer.queue().check().unwrap();
    buffer
}

/// Multiplies a buffer, as late as possible before a wait.
pub(super) fn scale(buffer: &Buffer, by: f32) {
    buffer.write_all().unwrap().scale(f64::from(by)).unwrap();
}

/// Copies a buffer to another, in the order of the queue of the destination.
pub(super) fn copy(from: &Buffer, to: &Buffer) {
    to.write_all().unwrap().copy_from(&from.read_all().unwrap()).unwrap();
}

/// Waits for the queue of a buffer, and returns true if all its elements are this number.
pub(super) fn is(buffer: &Buffer, number: f32) -> bool {
    buffer.host::<f32>().unwrap().iter().all(|element| *element == number)
}

/// A rank that delays the wait for its work until the other rank has finished, but not for longer than `at_most`.
pub(super) struct HeldBackRank {
    is_over: Mutex<bool>,
    changed: Condvar,
    at_most: Duration,
}

impl HeldBackRank {
    pub(super) fn new(trial: Trial) -> Self {
        HeldBackRank { is_over: Mutex::new(false), changed: Condvar::new(), at_most: trial.hold }
    }

    pub(super) fn end(&self) {
        *self.is_over.lock().unwrap() = true;
        self.changed.notify_all();
    }

    pub(super) fn wait(&self) {
        let is_over = self.is_over.lock().unwrap();
        drop(self.changed.wait_timeout_while(is_over, self.at_most, |is_over| !*is_over).unwrap());
    }
}

/// One of two ranks.
pub(super) struct TrialRank {
    pub(super) number: usize,
    pub(super) gpu: Cuda,
    /// Endpoints on the path.
    ends: Vec<Rc<dyn Transport>>,
    poison: Poison,
    sequence: Cell<u64>,
}

/// Runs `body` on two ranks whose GPUs reach each other on a path: one GPU by `ipc`, and two by NCCL. Returns true if both
/// do.
pub(super) fn on_two(path: TransportKind, body: impl Fn(&TrialRank) -> bool + Sync) -> bool {
    let all = spawn(TransportKind::Thread, 2, |world| {
        let number = world.rank();
        let gpu = Cuda::new(if path == TransportKind::Nccl { number } else { 0 }).unwrap();
        let queue = gpu.queue().unwrap();
        let open = |channel| {
            let end = world.open(channel).unwrap();
            assert_eq!(end.devices().unwrap().attach(&queue, LONG).unwrap(), Some(path));
            end
        };
        let ends = vec![open(0), open(1)];
        let rank = TrialRank { number, gpu, ends, poison: Poison::default(), sequence: Cell::new(0) };
        let is_right = body(&rank);
        if !is_right {
            end_wrong();
        }
        // From now on, a query also does the work, because closing endpoints only query.
        configure("seed=0");
        is_right
    });
    all == [true, true]
}

impl TrialRank {
    /// Returns a buffer of equal numbers that the other rank's GPU reads in place, on a new queue.
    pub(super) fn registered(&self, number: f32) -> Buffer {
        let queue = self.gpu.queue().unwrap();
        let buffer = self.ends[0].register(&queue, DType::F32, LEN, LONG).unwrap();
        copy(&filled(&self.gpu, number), &buffer);
        queue.check().unwrap();
        buffer
    }

    fn label(&self, fingerprint: Fingerprint) -> Label {
        let sequence = self.sequence.replace(self.sequence.get() + 1);
        Label { tag: Tag::new(0, 0, sequence, 0).unwrap(), fingerprint }
    }

    fn wait(&self, end: &Rc<dyn Transport>, ticket: Ticket, label: Label) {
        let terms = OperationContext { transport: &**end, poison: &self.poison, deadline: LONG };
        block_on(&**end, Operation::new(terms, ticket, Source::Any, label)).unwrap();
    }

    fn collect(&self, end: usize, fingerprint: Fingerprint, input: Option<&Buffer>, output: &Buffer) {
        let end = &self.ends[end];
        let label = self.label(fingerprint);
        let input = input.map(|input| input.read_all().unwrap());
        let members = (0..end.size()).collect();
        let ticket = end.native().unwrap().post(label, &members, input, output.write_all().unwrap());
        self.wait(end, ticket, label);
    }

    /// Enqueues a sum over both ranks, on one of two endpoints.
    pub(super) fn all_reduce(&self, end: usize, buffer: &Buffer) {
        let fingerprint = Fingerprint::new(OperationKind::AllReduce, DType::F32, LEN);
        self.collect(end, Fingerprint { reduce: Some(ReduceOp::Sum), ..fingerprint }, None, buffer);
    }

    /// Enqueues a sum over both ranks of this rank's half.
    pub(super) fn reduce_scatter(&self, input: &Buffer, output: &Buffer) {
        let fingerprint = Fingerprint::new(OperationKind::ReduceScatter, DType::F32, LEN);
        self.collect(0, Fingerprint { reduce: Some(ReduceOp::Sum), ..fingerprint }, Some(input), output);
    }

    /// Enqueues a broadcast of rank 1's buffer.
    pub(super) fn broadcast(&self, buffer: &Buffer) {
        let fingerprint = Fingerprint::new(OperationKind::Broadcast, DType::F32, LEN);
        self.collect(0, Fingerprint { root: Some(1), ..fingerprint }, None, buffer);
    }

    /// Enqueues a message of rank 1 to rank 0.
    pub(super) fn message(&self, buffer: &Buffer) {
        let end = &self.ends[0];
        let label = self.label(Fingerprint::new(OperationKind::SendRecv, DType::F32, LEN));
        let ticket = match self.number {
            0 => end.post_recv(Source::Rank(1), label, buffer.write_all().unwrap(), ReceiveMode::Copy),
            _ => end.post_send(0, label, buffer.read_all().unwrap()),
        };
        self.wait(end, ticket, label);
    }

    /// Returns an idle queue of the rank's GPU.
    pub(super) fn queue(&self) -> Queue {
        self.gpu.queue().unwrap()
    }
}
