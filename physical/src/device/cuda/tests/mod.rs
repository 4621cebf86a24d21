//! The device itself: results have the host's bits in every order, and nothing is released too early or kept for
//! ever. Without a driver, real or fake, each test reports that it is skipped.

mod exchange;
pub(crate) mod faults;
mod foreign;
mod kept;
mod refusals;
mod timestamps;
pub(crate) mod watched;

use super::*;
use crate::device::apply;
use crate::device::operations::program::{Argument, Code, Launch, Module, Program};
use crate::device::{Kernel, Operands};
use crate::memory::Buffer;
use crate::memory::dtype::{DType, ReduceOp};
use crate::testing::late::Late;
use crate::testing::late::tests::relay;
use crate::waiting::alarm::Alarm;
use crate::waiting::doorbell::Bell;
use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

/// Opens the first GPU; reports if there is none.
fn gpu() -> Option<Cuda> {
    let gpu = Cuda::new(0);
    if let Err(error) = &gpu {
        let _ = writeln!(std::io::stderr(), "skipped: no CUDA device: {error}");
    }
    gpu.ok()
}

fn on_host() -> Vec<f32> {
    relay(&[Queue::host(), Queue::host(), Queue::host()]).unwrap()
}

#[test]
fn three_queues_have_the_bits_of_the_host() {
    let Some(gpu) = gpu() else { return };
    let want = on_host();
    for _ in 0..20 {
        let queues = [(); 3].map(|()| gpu.queue().unwrap());
        assert_eq!(relay(&queues).unwrap(), want);
    }
    let one = gpu.queue().unwrap();
    assert_eq!(relay(&[one.clone(), one.clone(), one]).unwrap(), want, "one queue");
}

#[test]
fn it_mixes_with_the_host_and_with_other_devices() {
    let Some(gpu) = gpu() else { return };
    let want = on_host();
    let late = Late::new(3);
    for place in 0..3 {
        for other in [Queue::host(), late.queue()] {
            let mut queues = [(); 3].map(|()| gpu.queue().unwrap());
            queues[place] = other;
            assert_eq!(relay(&queues).unwrap(), want, "queue {place} is another device's");
        }
    }
}

#[test]
fn every_type_and_length_comes_back_as_it_went() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    for len in [0, 1, 3, 1000, 100_000] {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
        let up = Buffer::from_slice_on(&queue, &bytes).unwrap();
        let there = up.copied().unwrap();
        assert_eq!(*there.host::<u8>().unwrap(), *bytes, "{len} bytes");
        there.write_all().unwrap().clear();
        assert!(there.host::<u8>().unwrap().iter().all(|byte| *byte == 0), "{len} bytes");
    }
    let sum = Buffer::from_slice_on(&queue, &[1i64, -2]).unwrap();
    let other = sum.copied().unwrap();
    sum.write_all().unwrap().reduce(ReduceOp::Sum, &other.read_all().unwrap()).unwrap();
    assert_eq!(*sum.host::<i64>().unwrap(), [2, -4]);
    assert_eq!(Buffer::zeroed_on(&queue, DType::F64, 3).unwrap().host::<f64>().unwrap().len(), 3);
}

#[test]
fn a_thread_that_has_enqueued_nothing_may_ask_for_an_event() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let sum = Buffer::from_slice_on(&queue, &[1.0f32; 1000]).unwrap();
    sum.write_all().unwrap().scale(2.0).unwrap();
    let event = queue.device().unwrap().record();
    std::thread::spawn(move || {
        assert!(event.wait(Duration::from_secs(60)));
        assert!(event.has_happened() && event.failure().is_none());
    })
    .join()
    .unwrap();
}

#[test]
fn threads_share_a_device_and_a_queue() {
    let Some(gpu) = gpu() else { return };
    let want = on_host();
    let shared = gpu.queue().unwrap();
    let rank = || {
        let queues = [shared.clone(), gpu.queue().unwrap(), gpu.queue().unwrap()];
        (0..10).for_each(|_| assert_eq!(relay(&queues).unwrap(), want));
    };
    std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(rank)));
    shared.check().unwrap();
}

#[test]
fn the_same_device_is_opened_once() {
    let Some(gpu) = gpu() else { return };
    let again = Cuda::new(0).unwrap();
    assert!(Arc::ptr_eq(&gpu.0, &again.0));
    assert_eq!(Device::name(&again), "cuda:0");
    let about = again.description();
    assert_eq!(devices().unwrap().first(), Some(about));
    assert!(again.free_memory().unwrap() <= about.memory);
}

#[test]
fn an_event_happens_and_rings_though_nobody_has_its_queue_any_more() {
    let Some(gpu) = gpu() else { return };
    for _ in 0..10 {
        let x = Buffer::from_slice_on(&gpu.queue().unwrap(), &[1.0f32; 100]).unwrap();
        let early = x.queue().device().unwrap().record();
        x.write_all().unwrap().scale(2.0).unwrap();
        let late = x.queue().device().unwrap().record();
        drop(x);
        // In the other order than they were recorded.
        let bells = [late, early].map(|event| {
            let alarm = Arc::new(Alarm::default());
            event.ring(Arc::clone(&alarm) as Arc<dyn Bell>);
            (event, alarm)
        });
        for (event, alarm) in &bells {
            assert!(alarm.wait(Duration::from_secs(60)));
            assert!(event.has_happened() && event.wait(Duration::ZERO) && event.failure().is_none());
        }
    }
}

#[test]
fn host_memory_comes_back_when_it_is_done_with() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let device = queue.device().unwrap();
    let address = |buffer: &Buffer| buffer.read_all().unwrap().bytes().as_ptr().addr();
    let first = device.host_memory(DType::F32, 300_001).unwrap();
    let place = address(&first);
    assert!(first.queue().is_host() && first.len() == 300_001);
    drop(first);
    assert!(device.host_memory(DType::U8, 0).unwrap().is_empty());
    let mut again = device.host_memory(DType::F64, 150_001).unwrap();
    again.host_mut::<f64>().unwrap().fill(1.0);
    // Another test may have taken it since.
    let place_again = address(&again);
    drop(again);
    assert!(place == place_again || device.host_memory(DType::F64, 150_001).is_ok());
}

/// Owner of another library's memory; its drop reports the thread.
struct Owner(Sender<ThreadId>, Option<Buffer>);

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.1.take());
        let _ = self.0.send(std::thread::current().id());
    }
}

#[test]
fn memory_of_another_library_goes_with_whoever_uses_it_last() {
    let Some(gpu) = gpu() else { return };
    let own = gpu.queue().unwrap();
    let foreign = || {
        let (sender, receiver) = channel();
        let tensor = Buffer::from_slice_on(&own, &[1.0f32; 100]).unwrap();
        let address = std::ptr::NonNull::new(tensor.read_all().unwrap().span().address()).unwrap();
        let keeper = Arc::new(Owner(sender, Some(tensor)));
        // SAFETY: the elements live as long as the keeper, and nothing else accesses them.
        (unsafe { Buffer::over_foreign(&own, address, DType::F32, 100, keeper) }.unwrap(), receiver)
    };
    // Without work in flight: immediately, on this thread.
    let (x, owner) = foreign();
    let view = x.read_all().unwrap();
    drop(x);
    assert!(owner.try_recv().is_err(), "a view is left");
    drop(view);
    assert_eq!(owner.try_recv(), Ok(std::thread::current().id()));
    // Work of another queue reads it: on the thread that first sees its end.
    let (x, owner) = foreign();
    let y = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::F32, 100).unwrap();
    y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
    drop(x);
    own.check().unwrap();
    y.queue().check().unwrap();
    assert!(owner.recv_timeout(Duration::from_secs(60)).is_ok());
    assert_eq!(*y.host::<f32>().unwrap(), [1.0; 100]);
    // Without waits, and without the queues: soon.
    let (x, owner) = foreign();
    x.write_all().unwrap().add_scaled(1.0, &y.read_all().unwrap()).unwrap();
    drop((x, y, own));
    assert!(owner.recv_timeout(Duration::from_secs(60)).is_ok());
}

/// Owner whose drop reports that it has begun, and then waits for a lock.
struct Slow(Sender<()>, Arc<Mutex<()>>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.send(());
        drop(self.1.lock());
    }
}

#[test]
fn an_owner_may_wait_for_somebody_who_waits_for_the_queue() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let (sender, receiver) = channel();
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let tensor = Buffer::from_slice_on(&queue, &[1.0f32; 100]).unwrap();
    let address = std::ptr::NonNull::new(tensor.read_all().unwrap().span().address()).unwrap();
    let keeper = Arc::new((Slow(sender, Arc::clone(&lock)), tensor));
    // SAFETY: the elements live as long as the keeper, and nothing else accesses them.
    let x = unsafe { Buffer::over_foreign(&queue, address, DType::F32, 100, keeper) }.unwrap();
    x.write_all().unwrap().scale(2.0).unwrap();
    drop(x);
    // No thread queries the queue, so the sweeper drops it.
    receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    let y = Buffer::from_slice_on(&queue, &[1.0f32; 100]).unwrap();
    assert_eq!(*y.host::<f32>().unwrap(), [1.0; 100]);
    queue.check().unwrap();
    drop(held);
}

/// Adds 1 to every number, by way of scratch memory.
#[derive(Debug)]
struct Count(usize);

static WHOLE: Module = Module { name: "whole", code: Code::Packed(hexagram_ptx::WHOLE) };

impl Kernel for Count {
    fn run(&self, operands: Operands<'_>) -> Result<()> {
        let ([], [to]) = operands.all::<i64, 0, 1>()?;
        to.iter_mut().enumerate().for_each(|(at, to)| *to = at as i64 + 1);
        Ok(())
    }

    fn program(&self) -> Option<Program> {
        let arguments = vec![Argument::Scratch(256), Argument::U64(self.0 as u64), Argument::Operand(0)];
        let launch = Launch { entry: "whole_scratch", blocks: 3, threads: 32, arguments };
        Some(Program { scratch: 256 + 8 * self.0, ..Program::of(&WHOLE, launch) })
    }
}

#[test]
fn kernels_have_scratch_memory_as_large_as_they_ask_for() {
    let Some(gpu) = gpu() else { return };
    let queue = gpu.queue().unwrap();
    let buffers: Vec<Buffer> =
        [10, 1000, 20, 3000].map(|len| Buffer::zeroed_on(&queue, DType::I64, len).unwrap()).into();
    for to in &buffers {
        apply(Arc::new(Count(to.len())), [], [to.write_all().unwrap()]).unwrap();
    }
    for to in &buffers {
        let want: Vec<i64> = (1..=to.len() as i64).collect();
        assert_eq!(*to.host::<i64>().unwrap(), *want);
    }
}

#[test]
fn a_program_that_asks_for_what_is_not_there_is_a_failure() {
    let Some(gpu) = gpu() else { return };
    /// Launches an entry, with an operand, neither of which may be there.
    #[derive(Debug)]
    struct Wrong(&'static str, usize);
    impl Kernel for Wrong {
        fn run(&self, _: Operands<'_>) -> Result<()> {
            Ok(())
        }
        fn program(&self) -> Option<Program> {
            let arguments = vec![Argument::U64(0), Argument::U64(0), Argument::Operand(self.1)];
            Some(Program::of(&WHOLE, Launch { entry: self.0, blocks: 1, threads: 1, arguments }))
        }
    }
    let failure = |entry, operand| {
        let to = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::I64, 1).unwrap();
        apply(Arc::new(Wrong(entry, operand)), [], [to.write_all().unwrap()]).unwrap();
        let failure = to.queue().check().map_err(|error| error.to_string());
        to.queue().check().unwrap();
        failure
    };
    failure("whole_scratch", 0).unwrap();
    let error = failure("whole_scratch", 1).unwrap_err();
    assert!(error.contains("whole_scratch needs operand 1, and there are 1"), "{error}");
    let error = failure("whole_none", 0).unwrap_err();
    assert!(error.contains("find the kernel whole_none of whole on cuda:0: CUDA_ERROR_NOT_FOUND"), "{error}");
}
