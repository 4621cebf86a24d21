//! Ranks on threads, each with a GPU, a stream and a communicator.

use cudarc::driver::sys::{self, CUresult, CUstream};
use nccl_rs::{Communicator, Result, UniqueId};
use std::ffi::c_void;
use std::io::Write;
use std::ptr::null_mut;
use std::time::Duration;

/// Longest time for something that must end without help.
pub(crate) const SOON: Duration = Duration::from_secs(60);

#[track_caller]
pub(crate) fn ok(result: CUresult) {
    assert_eq!(result as u32, 0);
}

pub(crate) fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// Returns the number of GPUs that NCCL could use.
fn count() -> usize {
    // SAFETY: its initialisation code runs in all tests anyway. cudarc panics if there is none.
    let has_driver = unsafe { libloading::Library::new("libcuda.so.1") }.map(std::mem::forget).is_ok();
    if !has_driver || nccl_rs::version().is_err() {
        return 0;
    }
    let mut count = 0;
    // SAFETY: the pointer is valid for a write of one number.
    let found = unsafe { sys::cuInit(0) as u32 == 0 && sys::cuDeviceGetCount(&mut count) as u32 == 0 };
    if found { count as usize } else { 0 }
}

/// A rank's GPU, whose context is current on its thread.
pub(crate) struct Gpu {
    stream: CUstream,
}

impl Gpu {
    /// Returns a GPU; says so if there are fewer than `needed`.
    pub(crate) fn open(device: i32, needed: usize) -> Option<Self> {
        if count() < needed {
            skipped(&format!("no NCCL with {needed} GPUs"));
            return None;
        }
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: the pointers are valid for a write of one handle each.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(&mut context, device));
            ok(sys::cuCtxSetCurrent(context));
            ok(sys::cuStreamCreate(&mut stream, 1));
        }
        Some(Gpu { stream })
    }

    pub(crate) fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    /// Returns the address of numbers on the GPU, which are never freed.
    pub(crate) fn memory(&self, values: &[f32]) -> u64 {
        let mut address = 0;
        let bytes = size_of_val(values);
        // SAFETY: the pointer is valid for a write of one address, and both memories have this size.
        unsafe {
            ok(sys::cuMemAlloc_v2(&mut address, bytes));
            ok(sys::cuMemcpyHtoD_v2(address, values.as_ptr().cast(), bytes));
        }
        address
    }

    /// Waits for the stream.
    pub(crate) fn wait(&self) {
        // SAFETY: the stream is valid.
        unsafe { ok(sys::cuStreamSynchronize(self.stream)) };
    }

    /// Waits for the stream, and returns numbers on the GPU.
    pub(crate) fn read(&self, address: u64, count: usize) -> Vec<f32> {
        self.wait();
        let mut values = vec![0.0f32; count];
        // SAFETY: both memories have this size.
        unsafe { ok(sys::cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, 4 * count)) };
        values
    }
}

/// One rank.
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) gpu: Gpu,
    pub(crate) communicator: Communicator,
}

impl Rank {
    /// Lets NCCL begin something, and waits until it is ready.
    #[track_caller]
    pub(crate) fn done(&self, begun: Result<()>) {
        begun.unwrap();
        self.communicator.wait(SOON).unwrap();
    }
}

/// Runs ranks that are connected, and closes them.
pub(crate) fn ranks(count: usize, body: fn(&Rank)) {
    each(count, |rank| {
        body(&rank);
        close(rank.communicator);
    });
}

/// Runs ranks that are connected.
pub(crate) fn each(count: usize, body: impl Fn(Rank) + Send + Copy) {
    if Gpu::open(0, count).is_none() {
        return;
    }
    let id = UniqueId::new().unwrap();
    std::thread::scope(|scope| {
        for rank in 0..count {
            scope.spawn(move || {
                let gpu = Gpu::open(rank as i32, count).unwrap();
                let communicator = Communicator::new(id, rank, count).unwrap();
                communicator.wait(SOON).unwrap();
                body(Rank { rank, gpu, communicator });
            });
        }
    });
}

#[track_caller]
pub(crate) fn close(communicator: Communicator) {
    communicator.finalize().unwrap();
    communicator.wait(SOON).unwrap();
    communicator.destroy().unwrap();
}
