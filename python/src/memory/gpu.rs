//! Memory of GPUs: the queues on which operations work, ordered with the streams of the library that owns the elements.
//!
//! The owner's work so far precedes an operation: the queue of the operation waits for the owner's stream. Work of the
//! owner that follows has to wait in turn, either on the host (as `Work.wait` does for
//! [`producers_queues`]) or in a stream ([`make_stream_wait`]).

use crate::error::{exception, usage};
use crate::fork::Generation;
use hexagram::physical::device::cuda::{Cuda, ForeignStream, raw_stream};
use hexagram::{Queue, Result};
use pyo3::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Stream of another library whose order a queue follows. A producer of DLPack makes the queue wait by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Follows {
    Producers,
    /// A `CUstream`.
    Stream(usize),
}

/// The queues, by GPU and stream.
static QUEUES: Mutex<Option<HashMap<(usize, Follows), Queue>>> = Mutex::new(None);
/// The process that uses GPUs: a forked child can use neither the queues of its parent nor the driver.
static PROCESS: OnceLock<Generation> = OnceLock::new();

thread_local! {
    /// True if the call in progress on this thread has operands of producers.
    static HAS_OPERANDS: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the call in progress on this thread has operands on GPUs for which a wait on the host is needed.
pub(crate) fn has_operands() -> bool {
    HAS_OPERANDS.get()
}

/// Returns the same as [`has_operands`] at the end of a call.
pub(crate) fn take_operands() -> bool {
    HAS_OPERANDS.take()
}

/// Returns the queue of a GPU for tensors of DLPack, and its `CUstream`, for which the producer makes it wait.
pub(super) fn producers_queue(py: Python<'_>, gpu: usize) -> PyResult<(Queue, usize)> {
    check_process(py)?;
    let queue = queue(gpu, Follows::Producers).map_err(|error| exception(py, &error))?;
    HAS_OPERANDS.set(true);
    let stream = raw_stream(&queue).map_or(0, <*mut c_void>::expose_provenance);
    Ok((queue, stream))
}

/// Returns the queue of a GPU for tensors of DLPack.
pub(crate) fn shared_queue(gpu: usize) -> Result<Queue> {
    queue(gpu, Follows::Producers)
}

/// Returns the queue that works behind a stream of another library, after the work that the stream has so far.
///
/// # Errors
/// Also the first failure of earlier work of the queue.
pub(super) fn queue_behind(py: Python<'_>, gpu: usize, stream: usize) -> PyResult<Queue> {
    check_process(py)?;
    let behind = || {
        let queue = queue(gpu, Follows::Stream(stream))?;
        check_earlier_work(&queue)?;
        foreign(gpu, stream)?.make_queue_wait(&queue)?;
        Ok(queue)
    };
    behind().map_err(|error| exception(py, &error))
}

fn queue(gpu: usize, follows: Follows) -> Result<Queue> {
    let lock = || QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = lock().get_or_insert_default().get(&(gpu, follows)) {
        return Ok(queue.clone());
    }
    // Not under the lock: the driver takes seconds to open a GPU.
    let new = Cuda::new(gpu)?.queue()?;
    Ok(lock().get_or_insert_default().entry((gpu, follows)).or_insert(new).clone())
}

/// Returns a stream of another library by its `CUstream` handle.
pub(crate) fn foreign(gpu: usize, stream: usize) -> Result<ForeignStream> {
    let handle = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: the caller's library owns the stream, and the handle is used before this call of the program returns.
    Ok(unsafe { Cuda::new(gpu)?.foreign_stream(handle, Arc::new(())) })
}

/// Returns false in a process that was forked from one with GPUs.
pub(crate) fn is_own_process() -> bool {
    PROCESS.get_or_init(Generation::now).is_now()
}

/// Fails in a process that was forked from one with GPUs.
fn check_process(py: Python<'_>) -> PyResult<()> {
    if is_own_process() {
        return Ok(());
    }
    let what = "a forked process cannot use the GPUs of its parent";
    Err(usage(py, what, "start workers by `spawn`"))
}

/// Returns the failure of work that is done, such as input that a codec refused; a stream does not report it.
fn check_earlier_work(queue: &Queue) -> Result<()> {
    let failure = queue.device().and_then(|device| device.take_failure());
    failure.map_or(Ok(()), |failure| Err(failure.into_error(queue.name())))
}

/// Returns a new queue of a GPU, for the buckets of an engine.
pub(crate) fn new_queue(py: Python<'_>, gpu: usize) -> PyResult<Queue> {
    check_process(py)?;
    Cuda::new(gpu).and_then(|gpu| gpu.queue()).map_err(|error| exception(py, &error))
}

/// Makes the stream `waiting` wait for the operations on spans of the stream `stream` of the same GPU that have ended so
/// far, without a wait on the host. Streams are `CUstream` handles, as `torch.cuda.Stream.cuda_stream`; `gpu` is the number
/// of the GPU in this process.
///
/// Raises `SetupError` without a driver, `UsageError` during a graph capture, and failures of earlier work of the GPU.
#[pyfunction]
pub(crate) fn make_stream_wait(py: Python<'_>, gpu: usize, stream: usize, waiting: usize) -> PyResult<()> {
    check_process(py)?;
    follow_spans(gpu, stream, waiting).map_err(|error| exception(py, &error))
}

/// As [`make_stream_wait`].
pub(crate) fn follow_spans(gpu: usize, stream: usize, waiting: usize) -> Result<()> {
    let queue = queue(gpu, Follows::Stream(stream))?;
    foreign(gpu, waiting)?.wait_for(&queue)?;
    check_earlier_work(&queue)
}

/// Returns the queues of all GPUs for tensors of DLPack.
pub(crate) fn producers_queues() -> Vec<Queue> {
    let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let all = queues.iter().flatten();
    all.filter(|((_, follows), _)| *follows == Follows::Producers).map(|(_, queue)| queue.clone()).collect()
}
