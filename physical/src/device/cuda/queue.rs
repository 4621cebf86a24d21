//! Queues of a GPU: operations on views become copies and launches on a stream.

use super::arithmetic;
use super::enqueue::address;
use super::gpu::Gpu;
use super::launch::Filled;
use super::memory::{DeviceMemory, PinnedMemory};
use super::streams::event::CudaEvent;
use super::streams::stream::CudaStream;
use super::streams::timestamp::CudaTimestamp;
use crate::device::codec::Codec;
use crate::device::operations::program::Program;
use crate::device::{Allocation, DeviceQueue, Event, Failure, Kernel, Queue, Timestamp};
use crate::error::Result;
use crate::memory::dtype::{DType, ReduceOp};
use crate::memory::{Buffer, ReadView, Span, WriteView};
use cudarc::driver::sys;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A queue: one stream.
pub(crate) struct CudaQueue(pub(super) Arc<CudaStream>);

impl CudaQueue {
    /// Creates a queue with a new stream.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the driver refuses.
    pub(super) fn create(gpu: &Arc<Gpu>) -> Result<Queue> {
        Ok(Queue::of(Arc::new(CudaQueue(CudaStream::new(gpu)?))))
    }

    /// Enqueues a program on spans that are read and written, in the order of its operands.
    fn run_program(&self, program: Program, codec: &str, spans: Vec<Span>) {
        // Before the stream is locked.
        let prepared = self.0.gpu.prepare(&program).and_then(|()| self.0.make_room(&program));
        self.0.enqueue(spans, 0, |spans, tail| {
            prepared?;
            let operands: Vec<u64> = spans.iter().map(address).collect();
            let before = spans.first().map_or(0, |first| first.offset() / first.dtype().size());
            let filled = Filled { operands: &operands, codec, before: before as u64 };
            self.0.launch(tail, &program, &filled)
        });
    }

    /// Enqueues a program of the device's own arithmetic, unless it has no launches.
    fn compute(&self, program: Program, spans: Vec<Span>) {
        if spans.last().is_some_and(|to| !to.is_empty()) {
            self.run_program(program, "arithmetic", spans);
        }
    }
}

impl DeviceQueue for CudaQueue {
    fn device(&self) -> &str {
        &self.0.gpu.name
    }

    fn another(&self) -> Result<Queue> {
        Self::create(&self.0.gpu)
    }

    fn prepare(&self, program: &Program) -> Result<()> {
        self.0.gpu.prepare(program)
    }

    fn alloc(&self, bytes: usize) -> Result<Allocation> {
        if bytes == 0 {
            return Ok(Allocation { address: NonNull::<u64>::dangling().cast(), keeper: Arc::new(()) });
        }
        if let Some(lost) = self.0.gpu.lost() {
            return Err(lost.clone());
        }
        let memory = Arc::new(DeviceMemory::new(&self.0, bytes)?);
        let address = memory.pointer();
        self.0.enqueue(Arc::clone(&memory), 0, |memory, _| {
            // SAFETY: the memory has this many bytes.
            let status = unsafe { sys::cuMemsetD8Async(memory.room.address, 0, bytes, self.0.handle.0) };
            self.0.gpu.expect(status, &format!("clear {bytes} bytes"))
        });
        Ok(Allocation { address, keeper: memory })
    }

    fn host_memory(&self, dtype: DType, len: usize) -> Result<Buffer> {
        PinnedMemory::buffer(&self.0.gpu, dtype, len)
    }

    fn copy_up(&self, from: ReadView, to: Span) {
        let bytes = from.byte_len();
        if bytes == 0 {
            return;
        }
        self.0.enqueue((from, to), bytes, |(from, to), _| {
            let source = from.bytes().as_ptr().cast();
            // SAFETY: both have this many bytes, and the stream keeps them until the copy is done.
            let status = unsafe { sys::cuMemcpyHtoDAsync_v2(address(to), source, bytes, self.0.handle.0) };
            self.0.gpu.expect(status, &format!("copy {bytes} bytes up"))
        });
    }

    fn copy_down(&self, from: Span, to: WriteView) {
        let bytes = from.byte_len();
        if bytes == 0 {
            return;
        }
        self.0.enqueue((from, to), bytes, |(from, to), _| {
            let target = to.bytes().as_ptr().cast_mut().cast();
            // SAFETY: both have this many bytes, and the stream keeps them until the copy is done: the view is for writing, so
            // nothing else accesses its bytes during the copy.
            let status = unsafe { sys::cuMemcpyDtoHAsync_v2(target, address(from), bytes, self.0.handle.0) };
            self.0.gpu.expect(status, &format!("copy {bytes} bytes down"))
        });
    }

    fn clear(&self, to: Span) {
        let bytes = to.byte_len();
        if bytes == 0 {
            return;
        }
        self.0.enqueue(to, 0, |to, _| {
            // SAFETY: the span has this many bytes.
            let status = unsafe { sys::cuMemsetD8Async(address(to), 0, bytes, self.0.handle.0) };
            self.0.gpu.expect(status, &format!("clear {bytes} bytes"))
        });
    }

    fn copy(&self, from: Span, to: Span) {
        let bytes = to.byte_len();
        if bytes == 0 {
            return;
        }
        self.0.enqueue((from, to), 0, |(from, to), _| {
            // SAFETY: both spans have this many bytes.
            let status =
                unsafe { sys::cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, self.0.handle.0) };
            self.0.gpu.expect(status, &format!("copy {bytes} bytes"))
        });
    }

    fn reduce(&self, op: ReduceOp, from: Span, to: Span) {
        self.compute(arithmetic::reduce(op, to.dtype(), to.len()), vec![from, to]);
    }

    fn scale(&self, factor: f64, to: Span) {
        self.compute(arithmetic::scale(factor, to.dtype(), to.len()), vec![to]);
    }

    fn add_scaled(&self, weight: f64, from: Span, to: Span) {
        self.compute(arithmetic::add_scaled(weight, to.dtype(), to.len()), vec![from, to]);
    }

    fn weighted_sum(&self, terms: Vec<(f64, Option<Span>)>, to: Span) {
        let program = arithmetic::weighted_sum(&terms, to.dtype(), to.len());
        let spans = terms.into_iter().filter_map(|(_, term)| term).chain([to]);
        self.compute(program, spans.collect());
    }

    fn encode(&self, codec: &dyn Codec, from: Span, to: Span, seed: u64) -> bool {
        let Some(program) = codec.encode_program(from.len(), seed) else { return false };
        self.run_program(program, &codec.name(), vec![from, to]);
        true
    }

    fn decode(&self, codec: &dyn Codec, from: Span, weight: Option<f32>, to: Span) -> bool {
        // A different size means that this is no message of the codec; the host reports that.
        if from.byte_len() != codec.encoded_len(to.len()) {
            return false;
        }
        let Some(program) = codec.decode_program(to.len(), weight) else { return false };
        self.run_program(program, &codec.name(), vec![from, to]);
        true
    }

    fn run(&self, kernel: &Arc<dyn Kernel>, reads: Vec<Span>, writes: Vec<Span>) -> bool {
        let Some(program) = kernel.program() else { return false };
        let name = program.module.name;
        self.run_program(program, name, reads.into_iter().chain(writes).collect());
        true
    }

    fn record(&self) -> Arc<dyn Event> {
        Arc::new(self.0.record())
    }

    fn timestamp(&self) -> Option<Arc<dyn Timestamp>> {
        Some(CudaTimestamp::record(&self.0.gpu, self.0.handle))
    }

    fn wait(&self, event: &Arc<dyn Event>) {
        let Some(event) = event.downcast::<CudaEvent>() else { return };
        self.0.wait_for(event);
    }

    fn wait_to_read(&self, event: &Arc<dyn Event>) {
        let Some(event) = event.downcast::<CudaEvent>() else { return };
        self.0.wait_for(event);
        self.0.carry(event);
    }

    fn limit(&self) -> Duration {
        Duration::from_millis(self.0.limit.load(Ordering::Relaxed))
    }

    fn set_limit(&self, limit: Duration) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.0.limit.store(millis, Ordering::Relaxed);
    }

    fn take_failure(&self) -> Option<Failure> {
        self.0.take_failure()
    }
}
