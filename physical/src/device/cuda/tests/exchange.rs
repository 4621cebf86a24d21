//! Tensors of a framework that frees them as soon as it has enqueued their last use.

use super::*;
use crate::device::operations::unequal::Unequal;
use crate::memory::Buffer;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// Tensor of a framework whose stream is that of a queue; it may be freed on one thread only.
struct Tensor {
    numbers: Arc<Buffer>,
    freed: Arc<AtomicUsize>,
    thread: ThreadId,
}

// SAFETY: the buffer has these elements, on the GPU of its queue.
unsafe impl DeviceTensor for Tensor {
    fn address(&self) -> NonNull<u8> {
        self.numbers.address()
    }

    fn dtype(&self) -> DType {
        self.numbers.dtype()
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        assert_eq!(std::thread::current().id(), self.thread, "freed on another thread");
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

fn exchange(gpu: &Cuda, framework: &Queue) -> Exchange<Tensor> {
    // SAFETY: the stream lives as long as its queue.
    let stream = unsafe { gpu.foreign_stream(raw_stream(framework).unwrap(), Arc::new(framework.clone())) };
    Exchange::new(gpu.queue().unwrap(), stream)
}

#[test]
fn tensors_are_read_when_they_are_written_and_freed_on_their_thread() {
    let Some(gpu) = gpu() else { return };
    let framework = gpu.queue().unwrap();
    let exchange = exchange(&gpu, &framework);
    let bucket = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::F32, 100).unwrap();
    let freed = Arc::new(AtomicUsize::new(0));
    for round in 1..=50 {
        let numbers = Arc::new(Buffer::from_slice_on(&framework, &[1.0f32; 100]).unwrap());
        numbers.write_all().unwrap().scale(f64::from(round)).unwrap();
        let thread = std::thread::current().id();
        exchange.receive().unwrap();
        let tensor = Tensor { numbers, freed: Arc::clone(&freed), thread };
        // SAFETY: the framework has written it before, and never does so again.
        let gradient = unsafe { exchange.borrow(tensor) }.unwrap();
        bucket.write_all().unwrap().copy_from(&gradient.read_all().unwrap()).unwrap();
        drop(gradient);
        assert_eq!(*bucket.host::<f32>().unwrap(), [round as f32; 100]);
    }
    exchange.give_back().unwrap();
    assert!(freed.load(Ordering::Relaxed) >= 49);
    drop(exchange);
    assert_eq!(freed.load(Ordering::Relaxed), 50);
}

#[test]
fn a_framework_reads_what_was_written_and_writes_behind_what_is_read() {
    let Some(gpu) = gpu() else { return };
    let framework = gpu.queue().unwrap();
    let exchange = exchange(&gpu, &framework);
    let numbers = Arc::new(Buffer::from_slice_on(&framework, &[0.0f32; 100]).unwrap());
    let copy = Buffer::zeroed_on(&framework, DType::F32, 100).unwrap();
    let unequal = Unequal::new(exchange.queue(), 1).unwrap();
    let published = Buffer::zeroed_on(exchange.queue(), DType::F32, 100).unwrap();
    for round in 1..=30 {
        let thread = std::thread::current().id();
        let numbers = Arc::clone(&numbers);
        published.write_all().unwrap().copy_from(&buffer(&[round as f32; 100])).unwrap();
        exchange.receive().unwrap();
        let tensor = Tensor { numbers: Arc::clone(&numbers), freed: Arc::default(), thread };
        // SAFETY: the queue waits for the framework's work, and the framework waits before it continues.
        let variable = unsafe { exchange.borrow(tensor) }.unwrap();
        variable.write_all().unwrap().copy_from(&published.read_all().unwrap()).unwrap();
        unequal.compare(0, variable.read_all().unwrap(), published.read_all().unwrap()).unwrap();
        exchange.give_back().unwrap();
        copy.write_all().unwrap().copy_from(&numbers.read_all().unwrap()).unwrap();
        numbers.write_all().unwrap().clear();
        assert_eq!(*copy.host::<f32>().unwrap(), [round as f32; 100]);
    }
    assert_eq!(unequal.first().unwrap(), None);
}

fn buffer(numbers: &[f32]) -> crate::memory::ReadView {
    Buffer::from_slice(numbers).unwrap().read_all().unwrap()
}
