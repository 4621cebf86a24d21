//! The device under test: the host, or that of `HEXAGRAM_TEST_DEVICE`. With the feature `testing`, this may be
//! `late`, or `late:7` for a different seed; with the feature `cuda`, a GPU as `cuda`, or `cuda:1` for a different
//! one. With `HEXAGRAM_DEVICE_PATH=nccl`, which needs a GPU for each rank, `cuda` stands for all GPUs, which ranks
//! use in turn.
//!
//! A test that creates its buffers here runs on each device, and must get the same bits. Without a GPU, standard
//! error reports it, and the tests run on the host.

use super::fail;
#[cfg(any(test, feature = "testing"))]
use super::late::Late;
use crate::device::{Device, Queue};
use crate::memory::Buffer;
use crate::memory::dtype::{DType, Element};
use crate::system::environment::variable;
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;

/// Number of queues to which each thread assigns its buffers, so that they must wait for each other.
const QUEUES: usize = 3;

/// Devices that ranks have in turn; none is the host.
static DEVICES: LazyLock<Vec<Box<dyn Device>>> = LazyLock::new(|| {
    let Some(name) = variable("HEXAGRAM_TEST_DEVICE") else { return Vec::new() };
    let (kind, number) = name.split_once(':').unwrap_or((&name, ""));
    let number = if number.is_empty() { Some(None) } else { number.parse().ok().map(Some) };
    match (kind, number) {
        ("host", Some(None)) => Vec::new(),
        #[cfg(any(test, feature = "testing"))]
        ("late", Some(seed)) => vec![Box::new(Late::new(seed.unwrap_or(1)))],
        ("cuda", Some(None)) if variable("HEXAGRAM_DEVICE_PATH").is_some_and(|path| path == "nccl") => all(),
        ("cuda", Some(index)) => cuda(index.unwrap_or(0) as usize).into_iter().collect(),
        _ => fail(format!("HEXAGRAM_TEST_DEVICE={name} is not one of host, late, late:SEED, cuda, cuda:N")),
    }
});

/// Opens a GPU; reports if there is none.
#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Option<Box<dyn Device>> {
    use crate::device::cuda::Cuda;
    use std::io::Write;
    match Cuda::new(index) {
        Ok(gpu) => Some(Box::new(gpu)),
        Err(error) => {
            // Not by a printing macro: the test harness shows its output for failed tests only.
            let _ = writeln!(std::io::stderr(), "skipped: no CUDA device: {error}");
            None
        }
    }
}

/// Opens all GPUs of this machine.
#[cfg(feature = "cuda")]
fn all() -> Vec<Box<dyn Device>> {
    let count = crate::device::cuda::devices().map_or(1, |found| found.len());
    (0..count).map_while(cuda).collect()
}

#[cfg(not(feature = "cuda"))]
fn all() -> Vec<Box<dyn Device>> {
    cuda(0).into_iter().collect()
}

/// Reports that this build has no GPU.
#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Option<Box<dyn Device>> {
    fail("HEXAGRAM_TEST_DEVICE=cuda is for a build with the feature `cuda`")
}

thread_local! {
    static RANK: Cell<usize> = const { Cell::new(0) };
    static OWN: RefCell<Vec<Queue>> = const { RefCell::new(Vec::new()) };
}

/// Records the rank of this thread, which has its own device if there are several.
pub(super) fn take_place(rank: usize) {
    RANK.set(rank);
}

/// Returns a queue of the device under test: one of three of this thread in turn.
pub fn queue() -> Queue {
    let Some(device) = DEVICES.get(RANK.get() % DEVICES.len().max(1)) else { return Queue::host() };
    let queue = || device.queue().unwrap_or_else(|error| fail(error));
    OWN.with_borrow_mut(|own| {
        if own.len() < QUEUES {
            own.push(queue());
        } else {
            own.rotate_left(1);
        }
        own.last().cloned().unwrap_or_default()
    })
}

/// Returns a buffer of `elements` on the device under test, which is the host unless `HEXAGRAM_TEST_DEVICE` is set.
///
/// # Panics
/// If memory runs out.
pub fn buffer<T: Element>(elements: &[T]) -> Buffer {
    Buffer::from_slice_on(&queue(), elements).unwrap_or_else(|error| fail(error))
}

/// Returns `len` zeroed elements on the device under test; see [`buffer`].
///
/// # Panics
/// As [`buffer`].
pub fn zeroed(dtype: DType, len: usize) -> Buffer {
    Buffer::zeroed_on(&queue(), dtype, len).unwrap_or_else(|error| fail(error))
}
