//! Faults of a GPU, on demand: each program here runs in a separate process, over a fake driver with one fault. With
//! another driver, or none, they are skipped.

use super::*;
use crate::device::Failure;
use crate::device::cuda::driver::handle::ContextHandle;
use crate::device::cuda::driver::library::{driver, expect};
use crate::error::Error;
use crate::system::library::Library;
use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_char};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest time for an operation that must end without help.
pub(super) const SOON: Duration = Duration::from_secs(60);

/// Returns a function of the fake driver, if this is the fake one.
fn of_fake(name: &str) -> Option<*mut std::ffi::c_void> {
    Library::open(&["libcuda.so.1"], "").and_then(|library| library.function(name)).ok()
}

/// Returns one of the fake driver's counts.
pub(crate) fn count(name: &CStr) -> u64 {
    let function = of_fake("hexagramFakeCount\0").unwrap();
    // SAFETY: the fake driver's function of this name takes a text that ends with 0, and returns a number.
    let function: unsafe extern "C" fn(*const c_char) -> u64 = unsafe { std::mem::transmute(function) };
    // SAFETY: as above.
    unsafe { function(name.as_ptr()) }
}

/// Changes how the fake driver goes wrong.
pub(super) fn set(settings: &str) {
    let function = of_fake("hexagramFakeSet\0").unwrap();
    // SAFETY: the fake driver's function of this name takes a text that ends with 0.
    let function: unsafe extern "C" fn(*const c_char) = unsafe { std::mem::transmute(function) };
    let settings = CString::new(settings).unwrap();
    // SAFETY: as above.
    unsafe { function(settings.as_ptr()) }
}

/// Runs the test `name` of this file, which is otherwise ignored, in a separate process over a fake driver with these
/// settings. Reports if there is no fake driver.
#[track_caller]
pub(super) fn passes(settings: &str, name: &str) {
    passes_in("faults", settings, name);
}

/// Runs such a test of another file.
#[track_caller]
pub(super) fn passes_in(file: &str, settings: &str, name: &str) {
    if of_fake("hexagramFakeCount\0").is_none() {
        let _ = writeln!(std::io::stderr(), "skipped: no fake CUDA driver");
        return;
    }
    let name = format!("device::cuda::tests::{file}::{name}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env("HEXAGRAM_FAKE_CUDA", settings).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let has_passed = output.status.success() && text.contains("1 passed");
    assert!(has_passed, "{name} with {settings}: {text}{errors}");
}

#[test]
fn what_is_missing_of_a_library_is_named() {
    let error = Library::open(&["libnone.so.1", "libnone.so"], "install it").err().unwrap().to_string();
    assert!(error.starts_with("libnone.so.1 cannot be loaded: cannot open"), "{error}");
    assert!(error.ends_with("; install it") && !error.contains('\n'), "{error}");
    let library = Library::open(&["libnone.so.1", "libc.so.6"], "install another").unwrap();
    assert!(library.function("strlen\0").is_ok());
    let error = library.function("cuNone\0").unwrap_err().to_string();
    assert_eq!(error, "libc.so.6 is too old: it has no cuNone; install another");
}

#[test]
fn a_driver_that_is_too_old_is_named() {
    passes("version=11040", "tells_of_the_version");
}

#[test]
#[ignore = "needs a driver of CUDA 11.4"]
fn tells_of_the_version() {
    let error = Cuda::new(0).err().unwrap().to_string();
    let want = "libcuda.so.1 is of CUDA 11.4, older than 12.0; install NVIDIA's driver, version 525 or newer";
    assert_eq!(error, want);
    assert_eq!(devices().unwrap_err().to_string(), want);
}

#[test]
fn a_machine_without_a_gpu_is_told_so() {
    passes("init=100", "tells_of_no_device");
    passes("devices=2", "tells_how_many_devices_there_are");
}

#[test]
fn the_stubs_of_the_toolkit_are_named() {
    passes("init=34", "tells_of_the_stubs");
}

#[test]
#[ignore = "needs a driver that is a stub"]
fn tells_of_the_stubs() {
    let error = Cuda::new(0).err().unwrap().to_string();
    assert!(error.ends_with("take the folder of CUDA's stubs out of LD_LIBRARY_PATH"), "{error}");
}

#[test]
fn a_result_that_cudarc_lacks_is_told_by_its_number() {
    passes("launch=0:950", "tells_the_number");
}

#[test]
#[ignore = "needs a driver with a result of its own"]
fn tells_the_number() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let x = Buffer::from_slice_on(&queue, &[1.0f32; 10]).unwrap();
    x.write_all().unwrap().scale(2.0).unwrap();
    let error = queue.check().unwrap_err().to_string();
    assert!(error.contains("on cuda:0: CUDA error 950;"), "{error}");
}

#[test]
#[ignore = "needs a driver without a device"]
fn tells_of_no_device() {
    let error = Cuda::new(0).err().unwrap().to_string();
    assert!(error.starts_with("cannot initialise CUDA: CUDA_ERROR_NO_DEVICE"), "{error}");
    assert!(error.contains("nvidia-smi") && !error.contains('\n'), "{error}");
}

#[test]
#[ignore = "needs two devices"]
fn tells_how_many_devices_there_are() {
    let error = Cuda::new(2).err().unwrap().to_string();
    assert!(error.starts_with("cuda:2 does not exist: the driver shows 2 GPUs;"), "{error}");
    let all = devices().unwrap();
    assert_eq!(all.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1]);
    assert_ne!(all[0].uuid, all[1].uuid);
    // Each accesses the other's memory through the host.
    let queues = [0, 1, 0].map(|index| Cuda::new(index).unwrap().queue().unwrap());
    assert_eq!(queues[1].name(), "cuda:1");
    assert_eq!(relay(&queues).unwrap(), on_host());
}

#[test]
fn memory_that_runs_out_is_an_error_with_both_sizes() {
    passes("memory=64M", "tells_what_was_asked_for_and_what_is_free");
}

#[test]
#[ignore = "needs a device with 64 MiB"]
fn tells_what_was_asked_for_and_what_is_free() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let kept = Buffer::zeroed_on(&queue, DType::U8, 40 << 20).unwrap();
    let error = Buffer::zeroed_on(&queue, DType::U8, 50 << 20).err().unwrap();
    assert!(matches!(error, Error::System { .. }));
    let error = error.to_string();
    assert!(error.starts_with("cannot allocate 52428800 bytes on cuda:0, where "), "{error}");
    assert!(error.contains("of 67108864 are free: CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
    drop(kept);
    // Freed memory is available again, although no thread has waited for it.
    for _ in 0..5 {
        let x = Buffer::zeroed_on(&queue, DType::U8, 50 << 20).unwrap();
        assert!(x.host::<u8>().unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn after_a_fault_everything_fails_at_once_and_says_why() {
    for seed in 0..3 {
        passes(&format!("seed={seed},fault=2"), "tells_of_the_fault");
        passes(&format!("seed={seed},lost=3"), "tells_of_the_fault");
    }
}

#[test]
#[ignore = "needs a device that fails"]
fn tells_of_the_fault() {
    let gpu = Cuda::new(0).unwrap();
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    let x = Buffer::from_slice_on(&own, &[1.0f32; 1000]).unwrap();
    let y = Buffer::zeroed_on(&other, DType::F32, 1000).unwrap();
    for _ in 0..5 {
        y.write_all().unwrap().reduce(ReduceOp::Sum, &x.read_all().unwrap()).unwrap();
        x.write_all().unwrap().add_scaled(2.0, &y.read_all().unwrap()).unwrap();
    }
    let event = own.device().unwrap().record();
    assert!(event.wait(SOON), "what can happen no more counts as having happened");
    assert!(matches!(event.failure(), Some(Failure::Fault(_))));
    let alarm = Arc::new(Alarm::default());
    own.device().unwrap().record().ring(Arc::clone(&alarm) as Arc<dyn Bell>);
    assert!(alarm.wait(SOON));
    for queue in [&own, &other, &gpu.queue().unwrap_or(own.clone())] {
        for _ in 0..2 {
            let error = queue.check().unwrap_err().to_string();
            assert!(error.contains("cuda:0: CUDA_ERROR_"), "{error}");
            assert!(error.contains("start the job again") && !error.contains('\n'), "{error}");
        }
    }
    assert!(y.host::<f32>().is_err());
    assert!(Buffer::zeroed_on(&own, DType::F32, 1000).is_err());
}

#[test]
fn a_bell_rings_though_the_device_is_lost() {
    for seed in 0..3 {
        passes(&format!("seed={seed},fault=0"), "rings_though_nobody_asks");
    }
}

#[test]
#[ignore = "needs a device that fails"]
fn rings_though_nobody_asks() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let x = Buffer::from_slice_on(&queue, &[1.0f32; 1000]).unwrap();
    x.write_all().unwrap().scale(2.0).unwrap();
    let alarm = Arc::new(Alarm::default());
    queue.device().unwrap().record().ring(Arc::clone(&alarm) as Arc<dyn Bell>);
    assert!(alarm.wait(SOON));
}

#[test]
fn a_stream_that_never_ends_is_waited_for_no_longer_than_one_has_to() {
    passes("hang=0", "waits_no_longer");
}

#[test]
#[ignore = "needs a kernel that never ends"]
fn waits_no_longer() {
    let gpu = Cuda::new(0).unwrap();
    let [own, other] = [(); 2].map(|()| gpu.queue().unwrap());
    let x = Buffer::from_slice_on(&own, &[1.0f32; 1000]).unwrap();
    x.write_all().unwrap().scale(2.0).unwrap();
    let begun = Instant::now();
    let event = own.device().unwrap().record();
    assert!(!event.wait(Duration::from_millis(50)));
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert!(!event.has_happened());
    own.set_limit(Duration::from_millis(50));
    let error = own.check().unwrap_err().to_string();
    assert!(
        error.starts_with("cannot finish the work of a queue of cuda:0 within 50ms: timed out"),
        "{error}"
    );
    // Others are not kept by it, nor is the end of the program.
    let y = Buffer::from_slice_on(&other, &[1.0f32; 10]).unwrap();
    y.write_all().unwrap().clear();
    assert_eq!(*y.host::<f32>().unwrap(), [0.0; 10]);
    drop((x, y, event, own, other, gpu));
    assert!(begun.elapsed() < SOON);
}

#[test]
#[ignore = "needs a driver that captures a graph"]
fn refuses_a_captured_stream() {
    let gpu = Cuda::new(0).unwrap();
    let queue = gpu.queue().unwrap();
    // SAFETY: this is the legacy default stream, on which the driver reports a graph capture.
    let stream = unsafe { gpu.foreign_stream(std::ptr::null_mut(), Arc::new(())) };
    let stamp = stream.timestamp();
    assert!(stamp.has_passed() && stamp.moment().is_none(), "it would be drawn into the graph");
    for outcome in [stream.make_queue_wait(&queue), stream.wait_for(&queue)] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("is capturing a graph") && error.contains("on cuda:0"), "{error}");
    }
    queue.check().unwrap();
}

#[test]
fn each_wait_that_is_left_out_is_noticed() {
    passes("seed=3,delay=60000000", "goes_wrong_without_a_wait");
}

/// A program that multiplies by its argument, so that no result is left over from another run. It makes a call before
/// the wait under test.
type Program = fn(&Cuda, f32, &dyn Fn()) -> Vec<f32>;

/// Result of a program for a factor.
type Want = fn(f32) -> [f32; 2];

#[test]
#[ignore = "leaves out waits, of other tests as well"]
fn goes_wrong_without_a_wait() {
    let gpu = Cuda::new(0).unwrap();
    let programs: [(Program, Want); 3] = [
        (reads_what_is_written, |by| [3.0 + by, 4.0 + 2.0 * by]),
        (reads_what_is_written_again, |by| [4.0 * by, 8.0 * by]),
        (writes_what_is_read, |by| [by, 2.0 * by]),
    ];
    for (number, (program, want)) in programs.iter().cycle().take(15).enumerate() {
        let by = 2.0 + 3.0 * number as f32;
        assert_eq!(program(&gpu, by, &|| ()), want(by));
        let by = by + 1.0;
        assert_ne!(program(&gpu, by, &|| set(&format!("skip_wait={}", count(c"waits")))), want(by));
        let by = by + 1.0;
        assert_ne!(program(&gpu, by, &|| set("skip_host_waits=1")), want(by));
        set("skip_host_waits=0");
    }
}

fn reads_what_is_written(gpu: &Cuda, by: f32, before: &dyn Fn()) -> Vec<f32> {
    let x = multiplied(gpu, by);
    let y = Buffer::from_slice_on(&gpu.queue().unwrap(), &[3.0f32, 4.0]).unwrap();
    before();
    y.write_all().unwrap().reduce(ReduceOp::Sum, &x.read_all().unwrap()).unwrap();
    numbers(&y)
}

fn reads_what_is_written_again(gpu: &Cuda, by: f32, before: &dyn Fn()) -> Vec<f32> {
    let x = multiplied(gpu, by);
    let y = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::F32, 2).unwrap();
    y.write_all().unwrap().add_scaled(1.0, &x.read_all().unwrap()).unwrap();
    assert_eq!(numbers(&y), [by, 2.0 * by]);
    x.write_all().unwrap().scale(3.0).unwrap();
    before();
    y.write_all().unwrap().add_scaled(1.0, &x.read_all().unwrap()).unwrap();
    numbers(&y)
}

fn writes_what_is_read(gpu: &Cuda, by: f32, before: &dyn Fn()) -> Vec<f32> {
    let x = multiplied(gpu, by);
    let y = Buffer::zeroed_on(&gpu.queue().unwrap(), DType::F32, 2).unwrap();
    x.queue().check().unwrap();
    y.write_all().unwrap().copy_from(&x.read_all().unwrap()).unwrap();
    before();
    x.write_all().unwrap().scale(10.0).unwrap();
    assert!(x.host::<f32>().is_ok());
    numbers(&y)
}

/// Returns 1 and 2 times a factor, on a new queue that has not multiplied them yet. The memory exists already, so
/// before that only the numbers are wrong.
fn multiplied(gpu: &Cuda, by: f32) -> Buffer {
    let x = Buffer::from_slice_on(&gpu.queue().unwrap(), &[1.0f32, 2.0]).unwrap();
    x.queue().check().unwrap();
    x.write_all().unwrap().scale(f64::from(by)).unwrap();
    x
}

fn numbers(x: &Buffer) -> Vec<f32> {
    x.host::<f32>().unwrap().to_vec()
}

#[test]
fn a_process_may_end_with_work_in_flight() {
    for seed in 0..3 {
        passes(&format!("seed={seed},end=1,hang=0"), "ends_with_work_in_flight");
    }
}

#[test]
#[ignore = "ends with work in flight"]
fn ends_with_work_in_flight() {
    let queue = Cuda::new(0).unwrap().queue().unwrap();
    let x = Buffer::from_slice_on(&queue, &[1.0f32; 1000]).unwrap();
    x.write_all().unwrap().scale(2.0).unwrap();
    std::mem::forget((queue, x));
}

#[test]
fn a_graph_that_another_library_captures_is_not_spoilt() {
    passes("capture=1", "leaves_captures_and_threads_alone");
}

#[test]
#[ignore = "needs a driver with which somebody captures a graph"]
fn leaves_captures_and_threads_alone() {
    let queues = [(); 3].map(|()| Cuda::new(0).unwrap().queue().unwrap());
    assert_eq!(relay(&queues).unwrap(), on_host());
    driver().unwrap();
    let mut context = ContextHandle::NONE;
    // SAFETY: the pointer is valid for a write of one handle.
    expect(unsafe { sys::cuCtxGetCurrent(&mut context.0) }, "find the context").unwrap();
    assert_eq!(context, ContextHandle::NONE, "this thread had no context");
    let mut mode = 1u32;
    // SAFETY: the pointer is valid for a read and a write of one number.
    expect(unsafe { sys::cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) }, "find the mode")
        .unwrap();
    assert_eq!(mode, 0, "the mode of every thread at first");
}
