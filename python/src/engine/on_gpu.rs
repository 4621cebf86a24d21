//! A model in the memory of a GPU: the order between the work of PyTorch and that of the engine on the buckets.
//!
//! PyTorch enqueues its work on a stream, and so do the engine's queues; they wait for each other by events. The host waits at
//! the end of a backward pass only, where the engine looks for failures.
//!
//! ```text
//! the engine is called        the buckets wait for the current stream: it has written gradients or parameters
//! a gradient is ready         its bucket waits for the current stream, that of the backward pass
//! a backward pass is finished its buckets do not wait again: their communication overlaps with the pass
//! the engine returns          the current stream waits for the buckets, and for the tensors that were arguments
//! ```

use crate::error::{exception, usage};
use crate::memory::gpu::{follow_spans, foreign, new_queue};
use hexagram::algorithms::engine::BucketMemory;
use hexagram::logical::Span;
use hexagram::{Queue, Result};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// GPU of a model: its number, and the function that returns the `CUstream` of the current stream of the thread.
#[derive(FromPyObject)]
pub(super) struct GpuArgument(usize, Py<PyAny>);

/// A model on a GPU.
pub(super) struct ModelOnGpu {
    gpu: usize,
    current_stream: Py<PyAny>,
    buckets: Mutex<Buckets>,
}

/// The memory of all buckets.
#[derive(Default)]
struct Buckets {
    /// Gradients of each bucket.
    gradients: Vec<Span>,
    /// Parameters of each bucket, if the engine has them.
    parameters: Vec<Span>,
    /// Bucket of each parameter.
    places: Vec<usize>,
}

impl ModelOnGpu {
    /// Opens the GPU; returns the queue for the engine, too.
    pub(super) fn open(py: Python<'_>, argument: GpuArgument) -> PyResult<(Self, Queue)> {
        let GpuArgument(gpu, current_stream) = argument;
        let queue = new_queue(py, gpu)?;
        Ok((ModelOnGpu { gpu, current_stream, buckets: Mutex::default() }, queue))
    }

    /// Returns the number of the GPU.
    pub(super) fn gpu(&self) -> usize {
        self.gpu
    }

    /// Follows the engine to new buckets.
    pub(super) fn note(&self, memory: &[BucketMemory]) {
        let mut buckets = Buckets::default();
        for (at, bucket) in memory.iter().enumerate() {
            buckets.gradients.push(bucket.gradients.clone());
            buckets.parameters.extend(bucket.parameters.clone());
            for (parameter, _) in &bucket.members {
                buckets.places.resize(buckets.places.len().max(parameter + 1), at);
                buckets.places[*parameter] = at;
            }
        }
        *self.buckets() = buckets;
    }

    /// Makes work of the engine on all buckets wait for the current stream.
    pub(super) fn enter(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.stream(py)?;
        let wait = || {
            let (stream, buckets) = (foreign(self.gpu, stream)?, self.buckets());
            buckets.all().try_for_each(|memory| stream.make_memory_wait(memory))
        };
        py.detach(wait).map_err(|error| exception(py, &error))
    }

    /// Makes the current stream wait for the work of the engine on all buckets, and on tensors that were its arguments.
    pub(super) fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let stream = self.stream(py)?;
        let wait = || {
            let current = foreign(self.gpu, stream)?;
            self.buckets().all().try_for_each(|memory| current.wait_for_memory(memory))?;
            follow_spans(self.gpu, stream, stream)
        };
        py.detach(wait).map_err(|error| exception(py, &error))
    }

    /// Makes work of the engine on the bucket of a parameter wait for the current stream, which has written its gradient.
    pub(super) fn ready(&self, py: Python<'_>, parameter: usize) -> PyResult<()> {
        let stream = self.stream(py)?;
        let gradients = {
            let buckets = self.buckets();
            buckets.places.get(parameter).and_then(|at| buckets.gradients.get(*at)).cloned()
        };
        let Some(gradients) = gradients else {
            return Err(usage(py, format!("parameter {parameter} is in no bucket"), "report it as a bug"));
        };
        let wait = || -> Result<()> { foreign(self.gpu, stream)?.make_memory_wait(&gradients) };
        py.detach(wait).map_err(|error| exception(py, &error))
    }

    fn stream(&self, py: Python<'_>) -> PyResult<usize> {
        self.current_stream.call0(py)?.extract(py)
    }

    fn buckets(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buckets {
    fn all(&self) -> impl Iterator<Item = &Span> {
        self.gradients.iter().chain(&self.parameters)
    }
}
