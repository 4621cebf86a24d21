//! Memory of GPUs: the queues on which operations work, ordered with the streams of the library that owns the elements.
//!
//! The owner's work so far precedes an operation: the queue of the operation waits for the owner's stream. Work of the
//! owner that follows has to wait in turn, either on the host ([`finish`], called when the program waits for an
//! operation) or in a stream ([`make_stream_wait`]).

use crate::error::exception;
use hexagram::physical::device::cuda::{Cuda, ForeignStream, raw_stream};
use hexagram::{Queue, Result};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Streams of other libraries, each with the queue that works behind it. A stream is a GPU and a `CUstream`.
static BEHIND: Mutex<Option<HashMap<(usize, usize), Queue>>> = Mutex::new(None);

/// Queues for memory whose owner is not a stream but a producer of DLPack, by GPU.
static SHARED: Mutex<Option<HashMap<usize, Queue>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the queue of a GPU for tensors of DLPack, and its `CUstream`, which a producer makes wait for its own work.
pub(crate) fn shared_queue(gpu: usize) -> Result<(Queue, usize)> {
    let mut shared = lock(&SHARED);
    let queues = shared.get_or_insert_default();
    let queue = match queues.get(&gpu) {
        Some(queue) => queue.clone(),
        None => queues.entry(gpu).or_insert(Cuda::new(gpu)?.queue()?).clone(),
    };
    let stream = raw_stream(&queue).map_or(0, <*mut c_void>::expose_provenance);
    Ok((queue, stream))
}

/// Returns the queue that works behind a stream of another library, after the work that the stream has so far.
pub(super) fn queue_behind(gpu: usize, stream: usize) -> Result<Queue> {
    let queue = queue_of(gpu, stream)?;
    foreign(gpu, stream)?.make_queue_wait(&queue)?;
    Ok(queue)
}

fn queue_of(gpu: usize, stream: usize) -> Result<Queue> {
    let mut behind = lock(&BEHIND);
    let queues = behind.get_or_insert_default();
    if let Some(queue) = queues.get(&(gpu, stream)) {
        return Ok(queue.clone());
    }
    Ok(queues.entry((gpu, stream)).or_insert(Cuda::new(gpu)?.queue()?).clone())
}

fn foreign(gpu: usize, stream: usize) -> Result<ForeignStream> {
    let handle = std::ptr::with_exposed_provenance_mut(stream);
    // SAFETY: the caller's library owns the stream, and the handle is used before this call of the program returns.
    Ok(unsafe { Cuda::new(gpu)?.foreign_stream(handle, Arc::new(())) })
}

/// Makes the stream `waiting` wait for the operations on spans of the stream `stream` of the same GPU that have ended so
/// far, without a wait on the host. Streams are `CUstream` handles, as `torch.cuda.Stream.cuda_stream`; `gpu` is the number
/// of the GPU in this process.
///
/// Raises `SystemFailure` without a driver, `UsageError` during a graph capture.
#[pyfunction]
pub(crate) fn make_stream_wait(py: Python<'_>, gpu: usize, stream: usize, waiting: usize) -> PyResult<()> {
    let wait = || foreign(gpu, waiting)?.wait_for(&queue_of(gpu, stream)?);
    wait().map_err(|error| exception(py, &error))
}

/// Waits on the host until GPUs have completed all work of operations on tensors of DLPack so far.
///
/// # Errors
/// The first failure of this work, also of other operations.
pub(crate) fn finish(py: Python<'_>) -> Result<()> {
    let queues: Vec<Queue> = lock(&SHARED).iter().flat_map(HashMap::values).cloned().collect();
    if queues.is_empty() {
        return Ok(());
    }
    py.detach(|| queues.iter().try_for_each(Queue::check))
}
