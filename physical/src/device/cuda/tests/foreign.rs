//! Work of another library on its own stream, made by calls of the driver. It and a queue wait for each other.

use super::*;
use crate::device::cuda::driver::handle::{Handle, StreamHandle};
use crate::device::cuda::driver::library::expect;
use cudarc::driver::sys;
use std::ptr::{NonNull, without_provenance_mut};

/// Another library: a stream, and memory that only work on this stream uses.
struct Library {
    gpu: Cuda,
    stream: StreamHandle,
    address: u64,
}

const BYTES: usize = 1000;

impl Library {
    /// Opens a new stream, or one of the driver's default streams.
    fn new(gpu: &Cuda, default: Option<usize>) -> Self {
        let _current = gpu.0.enter().unwrap();
        let mut stream = StreamHandle::NONE;
        let mut address = 0;
        // SAFETY: the pointers are valid for a write of one handle and one address.
        let status = unsafe {
            sys::cuStreamCreate(&mut stream.0, 1);
            sys::cuMemAlloc_v2(&mut address, BYTES)
        };
        expect(status, "begin").unwrap();
        let stream = default.map_or(stream, |number| Handle(without_provenance_mut(number)));
        Library { gpu: gpu.clone(), stream, address }
    }

    /// Enqueues that its memory be filled.
    fn fill(&self, byte: u8) {
        let _current = self.gpu.0.enter().unwrap();
        // SAFETY: memory and stream are valid.
        let status = unsafe { sys::cuMemsetD8Async(self.address, byte, BYTES, self.stream.0) };
        expect(status, "fill").unwrap();
    }

    /// Returns the stream as hexagram's type.
    fn shared(&self) -> ForeignStream {
        // SAFETY: the stream is never destroyed.
        unsafe { self.gpu.foreign_stream(self.stream.0.cast(), Arc::new(())) }
    }

    /// Returns its memory as a buffer of a queue.
    fn tensor(&self, queue: &Queue) -> Buffer {
        let address = NonNull::new(without_provenance_mut(self.address as usize)).unwrap();
        // SAFETY: the memory is never freed, and its work and the queue's wait for each other.
        unsafe { Buffer::over_foreign(queue, address, DType::U8, BYTES, Arc::new(())) }.unwrap()
    }
}

/// Call that an exchange leaves out.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    LetWait,
    WaitFor,
}

/// Lets the library write, hexagram read, and the library write again. Returns true if hexagram has read the first
/// values.
fn read_in_order(library: &Library, byte: u8, without: Without) -> bool {
    let queue = library.gpu.queue().unwrap();
    let stream = library.shared();
    let copy = Buffer::zeroed_on(&queue, DType::U8, BYTES).unwrap();
    queue.check().unwrap();
    library.fill(byte);
    if without != Without::LetWait {
        stream.make_queue_wait(&queue).unwrap();
    }
    copy.write_all().unwrap().copy_from(&library.tensor(&queue).read_all().unwrap()).unwrap();
    if without != Without::WaitFor {
        stream.wait_for(&queue).unwrap();
    }
    library.fill(byte ^ 0xff);
    copy.host::<u8>().unwrap().iter().all(|read| *read == byte)
}

/// Lets hexagram write and the library overwrite that. Returns true if hexagram finally reads the library's values.
fn written_in_order(library: &Library, byte: u8, without: Without) -> bool {
    let queue = library.gpu.queue().unwrap();
    let stream = library.shared();
    let tensor = library.tensor(&queue);
    let numbers = Buffer::from_slice(&[byte ^ 0xff; BYTES]).unwrap();
    stream.make_queue_wait(&queue).unwrap();
    tensor.write_all().unwrap().copy_from(&numbers.read_all().unwrap()).unwrap();
    if without != Without::WaitFor {
        stream.wait_for(&queue).unwrap();
    }
    library.fill(byte);
    if without != Without::LetWait {
        stream.make_queue_wait(&queue).unwrap();
    }
    tensor.host::<u8>().unwrap().iter().all(|read| *read == byte)
}

#[test]
fn a_queue_and_another_librarys_stream_wait_for_each_other() {
    let Some(gpu) = gpu() else { return };
    for default in [None, Some(0), Some(1), Some(2)] {
        let library = Library::new(&gpu, default);
        for round in 1..30 {
            assert!(read_in_order(&library, round, Without::Nothing), "{default:?}");
            assert!(written_in_order(&library, round, Without::Nothing), "{default:?}");
        }
    }
}

#[test]
fn each_of_the_two_waits_is_needed() {
    let Some(gpu) = gpu().filter(|gpu| gpu.description().name.starts_with("Fake")) else { return };
    let library = Library::new(&gpu, None);
    for without in [Without::LetWait, Without::WaitFor] {
        for exchange in [read_in_order, written_in_order] {
            let noticed = (1..200).any(|round| !exchange(&library, round, without));
            assert!(noticed, "nothing goes wrong without a wait");
        }
    }
}

#[test]
fn a_default_stream_is_that_of_the_thread_that_asks() {
    let Some(gpu) = gpu() else { return };
    let rank = || {
        let library = Library::new(&gpu, Some(2));
        assert!((1..10).all(|round| read_in_order(&library, round, Without::Nothing)));
    };
    std::thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(rank)));
}

#[test]
fn another_devices_queue_is_refused() {
    let Some(gpu) = gpu() else { return };
    let stream = Library::new(&gpu, None).shared();
    for queue in [Queue::host(), Late::new(1).queue()] {
        assert_eq!(raw_stream(&queue), None);
        for error in [stream.make_queue_wait(&queue).unwrap_err(), stream.wait_for(&queue).unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains(queue.name()) && error.contains("on cuda:0"), "{error}");
        }
    }
    let queue = gpu.queue().unwrap();
    assert!(raw_stream(&queue).is_some_and(|stream| !stream.is_null()));
    assert_ne!(raw_stream(&queue), raw_stream(&queue.another().unwrap()));
}

#[test]
fn a_stream_that_is_captured_is_refused() {
    super::faults::passes("capture=1", "refuses_a_captured_stream");
}

#[test]
fn a_queue_of_ours_waits_when_another_library_says_so() {
    let Some(gpu) = gpu() else { return };
    let library = Library::new(&gpu, None);
    let queue = gpu.queue().unwrap();
    // SAFETY: the stream lives as long as its queue.
    let own = unsafe { gpu.foreign_stream(raw_stream(&queue).unwrap(), Arc::new(queue.clone())) };
    library.fill(7);
    let other = gpu.queue().unwrap();
    library.shared().make_queue_wait(&other).unwrap();
    own.wait_for(&other).unwrap();
    assert!(library.tensor(&queue).host::<u8>().unwrap().iter().all(|byte| *byte == 7));
}

/// Call on the memory that two libraries use that is left out.
#[derive(Clone, Copy, PartialEq)]
enum Memory {
    Complete,
    WithoutMakeWait,
    WithoutWaitFor,
}

/// Makes another queue than that of a buffer read what the library writes there, twice. Returns true if it read both values.
fn read_by_another_queue(library: &Library, byte: u8, calls: Memory) -> bool {
    let stream = library.shared();
    let [own, other] = [library.gpu.queue().unwrap(), library.gpu.queue().unwrap()];
    let tensor = library.tensor(&own);
    let copies = [byte, byte ^ 0xff].map(|byte| {
        let copy = Buffer::zeroed_on(&other, DType::U8, BYTES).unwrap();
        other.check().unwrap();
        library.fill(byte);
        if calls != Memory::WithoutMakeWait {
            stream.make_memory_wait(&tensor.span()).unwrap();
        }
        copy.write_all().unwrap().copy_from(&tensor.read_all().unwrap()).unwrap();
        if calls != Memory::WithoutWaitFor {
            stream.wait_for_memory(&tensor.span()).unwrap();
        }
        (byte, copy)
    });
    library.fill(0);
    copies.iter().all(|(byte, copy)| copy.host::<u8>().unwrap().iter().all(|read| read == byte))
}

#[test]
fn all_queues_that_use_a_memory_and_another_librarys_stream_wait_for_each_other() {
    let Some(gpu) = gpu() else { return };
    let library = Library::new(&gpu, None);
    assert!((1..30).all(|round| read_by_another_queue(&library, round, Memory::Complete)));
    if gpu.description().name.starts_with("Fake") {
        for calls in [Memory::WithoutMakeWait, Memory::WithoutWaitFor] {
            let noticed = (1..200).any(|round| !read_by_another_queue(&library, round, calls));
            assert!(noticed, "nothing goes wrong without a wait");
        }
    }
}
