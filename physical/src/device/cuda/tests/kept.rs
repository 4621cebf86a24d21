//! Memory and code that a device keeps: for how long, and their reuse. Each program here runs in a separate process,
//! over a fake driver; with another driver, or none, they are skipped.

use super::super::CudaQueue;
use super::faults::{SOON, count, passes_in, set};
use super::watched::Word;
use super::*;
use crate::testing::{on_threads, spawn};
use std::time::Instant;

#[track_caller]
fn passes(settings: &str, name: &str) {
    passes_in("kept", settings, name);
}

/// Runs a kernel whose module is loaded when it is first launched, and returns the 1 that it writes.
fn counted(queue: &Queue) -> Result<i64> {
    let to = Buffer::zeroed_on(queue, DType::I64, 1).unwrap();
    apply(Arc::new(Count(1)), [], [to.write_all().unwrap()]).unwrap();
    queue.check()?;
    Ok(to.host::<i64>()?[0])
}

#[test]
fn a_module_that_could_not_be_loaded_is_tried_again_if_that_may_help() {
    // The device's own come first.
    passes("load=3", "loads_at_once");
    passes("load=3:304", "loads_the_second_time");
    passes("load=3:218", "never_loads");
}

#[test]
#[ignore = "needs a device without memory for code"]
fn loads_at_once() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    assert_eq!(counted(&queue).unwrap(), 1);
    assert_eq!(count(c"loads"), 5);
}

#[test]
#[ignore = "needs a driver that fails once"]
fn loads_the_second_time() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let error = counted(&queue).unwrap_err().to_string();
    assert!(error.starts_with("cannot load the kernels of whole on cuda:0: "), "{error}");
    assert_eq!(counted(&queue).unwrap(), 1);
}

#[test]
#[ignore = "needs a driver that refuses the code"]
fn never_loads() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let first = counted(&queue).unwrap_err().to_string();
    assert!(first.contains("CUDA_ERROR_INVALID_PTX"), "{first}");
    assert_eq!(counted(&queue).unwrap_err().to_string(), first);
    assert_eq!(queue.prepare(&Count(1).program().unwrap()).unwrap_err().to_string(), first);
    assert_eq!(count(c"loads"), 4);
}

#[test]
fn a_queue_goes_on_while_a_module_is_compiled() {
    passes("seed=1", "goes_on_beside_the_compiler");
}

#[test]
#[ignore = "stops the compiler of the whole process"]
fn goes_on_beside_the_compiler() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    set("compiling=1");
    let other = queue.clone();
    let compiling = std::thread::spawn(move || counted(&other).unwrap());
    for _ in 0..20 {
        let x = Buffer::from_slice_on(&queue, &[1.0f32]).unwrap();
        x.write_all().unwrap().scale(2.0).unwrap();
        assert_eq!(*x.host::<f32>().unwrap(), [2.0]);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!compiling.is_finished());
    set("compiling=0");
    assert_eq!(compiling.join().unwrap(), 1);
    // Prepared code is not loaded again.
    let loads = count(c"loads");
    queue.prepare(&Count(1).program().unwrap()).unwrap();
    assert_eq!(counted(&queue).unwrap(), 1);
    assert_eq!(count(c"loads"), loads);
}

#[test]
fn what_a_queue_still_clears_is_nobody_elses() {
    for seed in 1..4 {
        passes(&format!("seed={seed},pools=0,delay=200000"), "gets_memory_that_is_done_with");
    }
}

#[test]
#[ignore = "needs a device without pools, and depends on the order of frees"]
fn gets_memory_that_is_done_with() {
    let gpu = Cuda::new(0).unwrap();
    let other = gpu.queue().unwrap();
    // All have the size of a page, like the record of refusals.
    for _ in 0..2 {
        drop(refusals::forgiven(&gpu));
        // Until the sweeper would have let go of the stream.
        std::thread::sleep(Duration::from_millis(20));
        let pages = [(); 8].map(|()| Buffer::from_slice_on(&other, &[7.0f32; 1024]).unwrap());
        other.check().unwrap();
        // The driver delays work by at most this time.
        std::thread::sleep(Duration::from_millis(200));
        pages.iter().for_each(|page| assert_eq!(*page.host::<f32>().unwrap(), [7.0; 1024]));
    }
}

#[test]
fn a_pool_gives_back_what_others_need() {
    passes("memory=64M", "lends_what_its_pool_has_kept");
}

#[test]
#[ignore = "needs a device with 64 MiB"]
fn lends_what_its_pool_has_kept() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    for _ in 0..3 {
        drop(Buffer::zeroed_on(&queue, DType::U8, 40 << 20).unwrap());
        queue.check().unwrap();
        drop(CudaQueue::of(&queue).unwrap().alloc_shareable(40 << 20).unwrap());
    }
}

#[test]
fn an_allocation_lets_no_stream_wait_for_another() {
    passes("seed=1", "has_a_pool_without_dependencies");
}

#[test]
#[ignore = "counts resources of the whole process"]
fn has_a_pool_without_dependencies() {
    let gpu = Cuda::new(0).unwrap();
    assert_eq!(count(c"dependent_pools"), 0);
    drop(gpu);
}

#[test]
fn a_program_waits_for_memory_that_is_about_to_be_free() {
    for seed in 1..4 {
        passes(&format!("seed={seed},memory=64M,delay=200000"), "waits_for_scratch");
        passes(&format!("seed={seed},memory=64M,delay=200000"), "waits_for_a_record");
    }
}

/// Fills a device of 64 MiB up to this many bytes with memory that is dropped, but that work still has.
fn dropped(queue: &Queue, left: usize) {
    let held = Buffer::zeroed_on(queue, DType::U8, (64 << 20) - left).unwrap();
    held.write_all().unwrap().clear();
}

#[test]
#[ignore = "needs a device with 64 MiB"]
fn waits_for_scratch() {
    let gpu = Cuda::new(0).unwrap();
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    let to = Buffer::zeroed_on(&own, DType::I64, 1_000_000).unwrap();
    own.check().unwrap();
    dropped(&other, 12 << 20);
    apply(Arc::new(Count(to.len())), [], [to.write_all().unwrap()]).unwrap();
    own.check().unwrap();
    assert_eq!(to.host::<i64>().unwrap().last(), Some(&1_000_000));
}

#[test]
#[ignore = "needs a device with 64 MiB"]
fn waits_for_a_record() {
    let gpu = Cuda::new(0).unwrap();
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    refusals::is_refused(&own, || dropped(&other, 16));
}

#[test]
fn nothing_is_freed_while_a_stream_waits_for_another_rank() {
    passes("seed=1,synchronises=1", "pins_beside_a_stream_that_waits");
    passes("seed=1,synchronises=1,memory=64M", "allocates_beside_a_stream_that_waits");
}

/// Runs `work` while a stream waits, and returns once it is done.
fn beside_a_stream_that_waits(queue: &Queue, work: impl FnOnce(&Queue) + Send + 'static) -> Arc<Word> {
    let word = Word::new(queue);
    word.wait_on(queue);
    let (over, is_over) = channel();
    let queue = queue.clone();
    std::thread::spawn(move || {
        work(&queue);
        over.send(()).unwrap();
    });
    // Long before the driver would give up.
    is_over.recv_timeout(SOON / 2).unwrap();
    word
}

#[test]
#[ignore = "needs a driver whose calls wait for all work"]
fn pins_beside_a_stream_that_waits() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let word = beside_a_stream_that_waits(&queue, |queue| {
        for mebibytes in 60..70 {
            drop(queue.host_memory(DType::U8, mebibytes << 20).unwrap());
        }
    });
    word.set(1);
    queue.check().unwrap();
    // Until the sweeper has seen that nothing is in flight.
    let begun = Instant::now();
    while count(c"live_pinned") > 200 << 20 {
        assert!(begun.elapsed() < SOON);
        drop(queue.host_memory(DType::U8, 100 << 20).unwrap());
        drop(queue.host_memory(DType::U8, 150 << 20).unwrap());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs a driver whose calls wait for all work"]
fn allocates_beside_a_stream_that_waits() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    drop(CudaQueue::of(&queue).unwrap().alloc_shareable(40 << 20).unwrap());
    let word = Word::new(&queue);
    word.wait_on(&queue);
    // A wait for free memory does not block the rank that the stream waits for.
    let own = queue.clone();
    let allocating = std::thread::spawn(move || drop(Buffer::zeroed_on(&own, DType::U8, 40 << 20).unwrap()));
    let (over, is_over) = channel();
    std::thread::spawn(move || {
        let gpu = Cuda::new(0).unwrap();
        for _ in 0..50 {
            gpu.free_memory().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        word.set(1);
        over.send(()).unwrap();
    });
    is_over.recv_timeout(SOON / 2).unwrap();
    allocating.join().unwrap();
}

#[test]
fn what_is_copied_up_lies_in_pinned_memory() {
    passes("seed=1", "copies_from_pinned_memory");
}

#[test]
#[ignore = "counts resources of the whole process"]
fn copies_from_pinned_memory() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let before = count(c"live_pinned");
    let x = Buffer::from_slice_on(&queue, &[1u8; 1 << 20]).unwrap();
    assert!(count(c"live_pinned") >= before + (1 << 20));
    let y = Buffer::zeroed_on(&queue, DType::U8, 3 << 20).unwrap();
    let before = count(c"live_pinned");
    y.write_all().unwrap().copy_from_bytes(&[2u8; 3 << 20]).unwrap();
    assert!(count(c"live_pinned") >= before + (3 << 20));
    assert!(x.host::<u8>().unwrap().iter().all(|byte| *byte == 1));
    assert!(y.host::<u8>().unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn pinned_memory_is_bounded_by_what_is_in_use() {
    passes("seed=1", "unpins_what_nobody_needs");
}

#[test]
#[ignore = "counts resources of the whole process"]
fn unpins_what_nobody_needs() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    for mebibytes in 1..40 {
        drop(queue.host_memory(DType::U8, mebibytes << 20).unwrap());
        assert!(count(c"live_pinned") <= (64 + 40) << 20, "{mebibytes} MiB");
    }
    // As many blocks of a size stay as are in use.
    let some =
        || -> Vec<Buffer> { (0..20).map(|_| queue.host_memory(DType::U8, 8 << 20).unwrap()).collect() };
    drop(some());
    let pinned = count(c"pinned");
    drop(some());
    assert_eq!(count(c"pinned"), pinned);
}

#[test]
fn memory_to_stage_a_registered_buffer_is_pinned_beforehand() {
    passes("seed=1", "stages_in_memory_that_is_there");
}

#[test]
#[ignore = "counts resources of the whole process"]
fn stages_in_memory_that_is_there() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    spawn(on_threads().next().unwrap(), 1, |world| {
        let transport = world.open(0).unwrap();
        let buffer = transport.register(&queue, DType::F32, 300_000, SOON).unwrap();
        let pinned = count(c"pinned");
        assert!(buffer.read_all().unwrap().copy_down().unwrap().is_some());
        assert_eq!(count(c"pinned"), pinned);
    });
}

#[test]
fn nothing_is_kept_in_the_end() {
    for seed in 0..3 {
        passes(&format!("seed={seed}"), "frees_everything");
    }
}

#[test]
#[ignore = "counts resources of the whole process"]
fn frees_everything() {
    let gpu = Cuda::new(0).unwrap();
    for _ in 0..10 {
        let queues = [(); 3].map(|()| gpu.queue().unwrap());
        assert_eq!(relay(&queues).unwrap(), on_host());
        // Work without a waiting thread, and on queues that are dropped.
        let x = Buffer::from_slice_on(&queues[0], &vec![1.0f32; 10_000]).unwrap();
        let y = Buffer::zeroed_on(&queues[1], DType::F32, 10_000).unwrap();
        y.write_all().unwrap().add_scaled(1.0, &x.read_all().unwrap()).unwrap();
    }
    drop(gpu);
    let begun = Instant::now();
    while count(c"live") > 0 || count(c"live_pinned") > 0 {
        let left = (count(c"live"), count(c"live_pinned"));
        assert!(begun.elapsed() < SOON, "{left:?} bytes of the device and of the host");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(count(c"allocations") > 50);
    // Another program continues with a new context.
    assert_eq!(relay(&[(); 3].map(|()| Cuda::new(0).unwrap().queue().unwrap())).unwrap(), on_host());
}
