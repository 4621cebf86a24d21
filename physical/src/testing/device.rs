//! The device under test: the host, or what `HEXAGRAM_TEST_DEVICE` names: with the feature `testing`, `Late` as `late`,
//! or `late:7` for another seed; with the feature `cuda` also a GPU as `cuda`, or `cuda:1` for another one. With `HEXAGRAM_DEVICE_PATH=nccl`,
//! which wants a GPU for each rank, `cuda` stands for all that there are: ranks have them in turn.
//!
//! A test that makes its buffers here runs on each, and has to see the same bits. Where no GPU can be had, standard error
//! says so, and the tests run on the host.

use super::fail;
#[cfg(any(test, feature = "testing"))]
use super::late::Late;
use crate::device::{Device, Queue};
use crate::dtype::{DType, Element};
use crate::environment::variable;
use crate::memory::Buffer;
use std::cell::{Cell, RefCell};
use std::sync::LazyLock;

/// Queues among which each thread deals out its buffers, so that they have to wait for each other.
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
        _ => fail(format!("HEXAGRAM_TEST_DEVICE={name} is none of host, late, late:SEED, cuda, cuda:N")),
    }
});

/// Opens a GPU; says so if there is none.
#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Option<Box<dyn Device>> {
    use crate::device::cuda::Cuda;
    use std::io::Write;
    match Cuda::new(index) {
        Ok(gpu) => Some(Box::new(gpu)),
        Err(error) => {
            // Not by a macro that prints: the test harness shows what those print of failing tests only.
            let _ = writeln!(std::io::stderr(), "skipped: no CUDA device: {error}");
            None
        }
    }
}

/// Opens all GPUs that there are.
#[cfg(feature = "cuda")]
fn all() -> Vec<Box<dyn Device>> {
    let count = crate::device::cuda::devices().map_or(1, |found| found.len());
    (0..count).map_while(cuda).collect()
}

#[cfg(not(feature = "cuda"))]
fn all() -> Vec<Box<dyn Device>> {
    cuda(0).into_iter().collect()
}

/// Says that there is no GPU in this build.
#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Option<Box<dyn Device>> {
    fail("HEXAGRAM_TEST_DEVICE=cuda is for a build with the feature `cuda`")
}

thread_local! {
    static RANK: Cell<usize> = const { Cell::new(0) };
    static OWN: RefCell<Vec<Queue>> = const { RefCell::new(Vec::new()) };
}

/// Notes that this thread is that of a rank, which has a device of its own where there are several.
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

/// Returns a buffer of `elements` on the device under test, which is the host's memory unless `HEXAGRAM_TEST_DEVICE`
/// names another.
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
