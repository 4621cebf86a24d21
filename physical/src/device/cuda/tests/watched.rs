//! Work of paths between devices: in order with the rest, kept until it is done, and watched. A stream whose peer
//! never comes is released, and all work after it fails.

use super::super::enqueue::{address, enqueue};
use super::super::{CudaQueue, FailureWatch};
use super::faults::{SOON, count, passes_in};
use super::*;
use crate::device::{SyncPoint, at};
use crate::error::Error;
use cudarc::driver::sys::{self, CUpointer_attribute, CUstreamWaitValue_flags, CUstreamWriteValue_flags};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

/// Attribute of an address: whether `cuIpcGetMemHandle` takes it. The driver writes four bytes.
const IPC_CAPABLE: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;

const WAIT: u32 = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
const WRITE: u32 = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;

/// Word of pinned memory, for which streams wait and which the host writes.
pub(crate) struct Word(Buffer);

impl Word {
    pub(crate) fn new(queue: &Queue) -> Arc<Self> {
        let mut word = queue.host_memory(DType::I32, 1).unwrap();
        word.host_mut::<i32>().unwrap()[0] = 0;
        Arc::new(Word(word))
    }

    fn pointer(&self) -> *mut u32 {
        self.0.read_all().unwrap().bytes().as_ptr().cast_mut().cast()
    }

    fn get(&self) -> u32 {
        // SAFETY: as for `set`.
        unsafe { AtomicU32::from_ptr(self.pointer()) }.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: u32) {
        // SAFETY: the word is valid, aligned, and reached by atomic accesses and by streams only.
        unsafe { AtomicU32::from_ptr(self.pointer()) }.store(value, Ordering::Release);
    }

    /// Lets a queue wait until the word is 1.
    pub(crate) fn wait_on(self: &Arc<Self>, queue: &Queue) {
        let word = self.pointer() as u64;
        enqueue(queue, Vec::new(), Vec::new(), Arc::clone(self), |work| {
            // SAFETY: the word is pinned memory, which the stream holds.
            let waits = || unsafe { sys::cuStreamWaitValue32_v2(work.stream().0, word, 1, WAIT) };
            work.expect(at(SyncPoint::OfTest, waits), "wait for a word")
        })
        .unwrap();
    }
}

/// Gives up a peer after a few looks, or sees that it has come.
struct Peer {
    queue: Queue,
    word: Arc<Word>,
    looks: AtomicUsize,
    is_lost: bool,
}

impl Peer {
    fn watch(queue: &Queue, word: &Arc<Word>, is_lost: bool) -> Arc<Self> {
        let looks = AtomicUsize::new(0);
        let peer = Arc::new(Peer { queue: queue.clone(), word: Arc::clone(word), looks, is_lost });
        CudaQueue::of(queue).unwrap().watch(Arc::clone(&peer) as Arc<dyn FailureWatch>);
        peer
    }
}

impl FailureWatch for Peer {
    fn look(&self) -> bool {
        if self.looks.fetch_add(1, Ordering::Relaxed) < 3 {
            return true;
        }
        if self.is_lost {
            let error = Error::usage("rank 1 is gone", "start it again");
            CudaQueue::of(&self.queue).unwrap().fail(&error);
        }
        self.word.set(1);
        false
    }
}

/// Makes `queue` wait for a peer before it doubles the result.
fn doubled(queue: &Queue, is_lost: bool) -> (Buffer, Arc<Peer>) {
    let x = Buffer::from_slice_on(queue, &[1.0f32, 2.0]).unwrap();
    let word = Word::new(queue);
    word.wait_on(queue);
    let peer = Peer::watch(queue, &word, is_lost);
    x.write_all().unwrap().scale(2.0).unwrap();
    (x, peer)
}

#[test]
fn work_that_goes_well_leaves_nothing_behind() {
    let Some(gpu) = gpu() else { return };
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    let (x, peer) = doubled(&own, false);
    let y = Buffer::zeroed_on(&other, DType::F32, 2).unwrap();
    y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
    assert_eq!(*y.host::<f32>().unwrap(), [2.0, 4.0]);
    own.check().unwrap();
    let begun = Instant::now();
    while Arc::strong_count(&peer) > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the watch is dropped without further looks");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(peer.looks.load(Ordering::Relaxed) >= 4, "the sweeper looks, and a waiting thread may");
}

/// Failed work; the waiting thread sees the failure before the device's own thread does.
struct Unseen {
    queue: Queue,
    looks: AtomicUsize,
}

impl FailureWatch for Unseen {
    fn look(&self) -> bool {
        let sweeps = std::thread::current().name() == Some("hexagram-watch");
        if sweeps || self.looks.fetch_add(1, Ordering::Relaxed) < 3 {
            return true;
        }
        CudaQueue::of(&self.queue).unwrap().fail(&Error::usage("rank 1 is gone", "start it again"));
        false
    }
}

#[test]
fn work_that_is_done_is_looked_at_before_anybody_relies_on_it() {
    let Some(gpu) = gpu() else { return };
    for reads in [false, true] {
        let [own, reader] = [(); 2].map(|()| gpu.queue().unwrap());
        let x = Buffer::from_slice_on(&own, &[1.0f32, 2.0]).unwrap();
        let watch: Arc<dyn FailureWatch> =
            Arc::new(Unseen { queue: own.clone(), looks: AtomicUsize::new(0) });
        CudaQueue::of(&own).unwrap().watch(watch);
        let error = if reads {
            let y = Buffer::zeroed_on(&reader, DType::F32, 2).unwrap();
            y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
            reader.check().unwrap_err()
        } else {
            own.check().unwrap_err()
        };
        assert!(error.to_string().contains("rank 1 is gone"), "{error}");
        assert!(reads || own.check().is_ok(), "it is reported once");
    }
}

#[test]
fn a_failure_found_late_gets_to_all_that_was_enqueued_behind_the_work() {
    let Some(gpu) = gpu() else { return };
    let [own, reader, third, writer] = [(); 4].map(|()| gpu.queue().unwrap());
    let before = own.device().unwrap().record();
    let (x, _peer) = doubled(&own, true);
    let [y, z] = [&reader, &third].map(|queue| Buffer::zeroed_on(queue, DType::F32, 2).unwrap());
    y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
    z.write_all().unwrap().copy_from(&y.read_all().unwrap()).unwrap();
    let (_, event) = z.read_all().unwrap().copy_down().unwrap().unwrap();
    // A queue that only waits in order to write does not get the failure.
    let w = Buffer::from_slice_on(&writer, &[1.0f32, 2.0]).unwrap();
    for queue in [&third, &writer] {
        at(SyncPoint::OfTest, || queue.device().unwrap().wait(&own.device().unwrap().record()));
    }
    assert!(event.wait(Duration::from_secs(60)));
    let named = |error: Error| assert!(error.to_string().contains("rank 1 is gone"), "{error}");
    named(event.failure().unwrap().into_error("cuda:0"));
    for queue in [&own, &reader, &third] {
        named(queue.check().unwrap_err());
        queue.check().unwrap();
    }
    assert_eq!(*w.host::<f32>().unwrap(), [1.0, 2.0]);
    assert!(before.failure().is_none());
    named(event.failure().unwrap().into_error("cuda:0"));
    // The queue continues.
    let (x, _peer) = doubled(&own, false);
    assert_eq!(*x.host::<f32>().unwrap(), [2.0, 4.0]);
}

#[test]
fn what_nobody_watches_may_be_failed_too() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let x = Buffer::from_slice_on(&queue, &[1.0f32]).unwrap();
    CudaQueue::of(&queue).unwrap().fail(&Error::usage("rank 2 is gone", "start it again"));
    assert!(x.host::<f32>().err().unwrap().to_string().contains("rank 2 is gone"));
    assert_eq!(*x.host::<f32>().unwrap(), [1.0]);
    // An error of the call itself is the caller's, and no failure of the queue.
    let outcome =
        enqueue(&queue, Vec::new(), Vec::new(), (), |_| Err(Error::usage("it is not a use", "stop")));
    assert!(outcome.unwrap_err().to_string().contains("a use"));
    queue.check().unwrap();
    assert!(enqueue(&Queue::host(), Vec::new(), Vec::new(), (), |_| Ok(())).is_err());
}

#[test]
fn foreign_work_is_in_order_with_what_it_reads_and_writes() {
    let Some(gpu) = gpu() else { return };
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    // Drivers refuse to write words into the memory of a pool, as buffers have it.
    let word = Word::new(&own);
    for round in 1..20 {
        let from = Buffer::from_slice_on(&other, &[1i32, 0]).unwrap();
        let to = Buffer::zeroed_on(&own, DType::I32, 2).unwrap();
        let more = Buffer::from_slice_on(&other, &[1i32, 0]).unwrap();
        from.write_all().unwrap().reduce(ReduceOp::Sum, &more.read_all().unwrap()).unwrap();
        let read = from.read_all().unwrap().span();
        let written = to.write_all().unwrap().span();
        let addresses = (address(&read), address(&written), word.pointer() as u64);
        enqueue(&own, vec![read], vec![written], Arc::clone(&word), |work| {
            let (from, to, word) = addresses;
            // SAFETY: both are eight bytes on the device, which the stream holds.
            let status = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 8, work.stream().0) };
            work.expect(status, "copy")?;
            // SAFETY: the word is pinned memory, which the stream holds.
            let status = unsafe { sys::cuStreamWriteValue32_v2(work.stream().0, word, round, WRITE) };
            work.expect(status, "write a word")
        })
        .unwrap();
        from.write_all().unwrap().clear();
        assert_eq!(*to.host::<i32>().unwrap(), [2, 0]);
        assert_eq!(word.get(), round);
    }
}

#[test]
fn shareable_memory_may_be_lent() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let cuda = CudaQueue::of(&queue).unwrap();
    let may_be_lent = |at: u64| {
        let mut answer = 0u32;
        let to = (&raw mut answer).cast();
        let _current = cuda.gpu().enter().unwrap();
        // SAFETY: the attribute is four bytes, for which there is a place.
        let status = unsafe { sys::cuPointerGetAttribute(to, IPC_CAPABLE, at) };
        cuda.gpu().expect(status, "ask about an address").unwrap();
        answer != 0
    };
    for _ in 0..3 {
        let lent = cuda.alloc_shareable(4000).unwrap();
        assert!(may_be_lent(lent.address.addr().get() as u64));
        // SAFETY: the memory is the device's, of as many bytes, and lives as long as the keeper.
        let buffer = unsafe { Buffer::over_foreign(&queue, lent.address, DType::F32, 1000, lent.keeper) };
        let buffer = buffer.unwrap();
        buffer
            .write_all()
            .unwrap()
            .copy_from(&Buffer::from_slice(&[1.0f32; 1000]).unwrap().read_all().unwrap())
            .unwrap();
        assert_eq!(*buffer.host::<f32>().unwrap(), [1.0; 1000]);
    }
    assert!(cuda.alloc_shareable(usize::MAX).is_err());
}

#[test]
fn a_stream_is_let_go_on_while_the_driver_holds_up_whoever_calls_it() {
    for seed in 0..3 {
        passes_in("watched", &format!("seed={seed},synchronises=1"), "lets_go_on_beside_the_driver");
    }
}

/// Gives up a peer once the driver blocks some thread, which it does until this stream continues.
struct Beside {
    queue: Queue,
    word: Arc<Word>,
}

impl FailureWatch for Beside {
    fn look(&self) -> bool {
        if count(c"held_up") == 0 {
            return true;
        }
        CudaQueue::of(&self.queue).unwrap().fail(&Error::usage("rank 1 is gone", "start it again"));
        self.word.set(1);
        false
    }
}

#[test]
#[ignore = "needs a driver whose calls wait for all work"]
fn lets_go_on_beside_the_driver() {
    let gpu = Cuda::new(0).unwrap();
    let queue = gpu.queue().unwrap();
    let x = Buffer::from_slice_on(&queue, &[1.0f32, 2.0]).unwrap();
    let word = Word::new(&queue);
    word.wait_on(&queue);
    let watch = Arc::new(Beside { queue: queue.clone(), word });
    drop(queue.host_memory(DType::U8, 1).unwrap());
    CudaQueue::of(&queue).unwrap().watch(watch);
    x.write_all().unwrap().scale(2.0).unwrap();
    let (over, is_over) = channel();
    std::thread::spawn(move || {
        let gpu = CudaQueue::of(&queue).unwrap().gpu();
        let _current = gpu.enter().unwrap();
        // Waits for the stream.
        gpu.free_pinned();
        over.send(queue.check().unwrap_err().to_string()).unwrap();
    });
    let error = is_over.recv_timeout(SOON).unwrap();
    assert!(error.contains("rank 1 is gone"), "{error}");
}
