//! Options of a loader, as keywords, and what a loader makes of functions of Python.

use super::sampler::{BatchSampler, RankSampler};
use crate::error::usage;
use crate::world::seconds;
use hexagram::LoaderOptions;
use hexagram::sampler::dataset::{Cause, Dataset, Fetch};
use hexagram::sampler::loader::{OnFailure, WorkerInfo};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;

/// A sample, or a batch of them.
pub(super) type Object = Py<PyAny>;

/// Options by their names in Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Keywords<'py> {
    batch_size: usize,
    shuffle: bool,
    sampler: Option<Bound<'py, RankSampler>>,
    batch_sampler: Option<Bound<'py, BatchSampler>>,
    workers: usize,
    drop_last: bool,
    timeout: Option<f64>,
    worker_init: Option<Py<PyAny>>,
    seed: u64,
    prefetch_factor: Option<usize>,
    persistent_workers: bool,
    in_order: bool,
    on_failure: String,
    retries: u32,
    retry_pause: f64,
}

impl Keywords<'_> {
    pub(super) fn read(self, py: Python<'_>) -> PyResult<LoaderOptions> {
        let on_failure = match self.on_failure.as_str() {
            "fail" => OnFailure::Fail,
            "skip" => OnFailure::Skip,
            other => {
                return Err(usage(py, format!("there is no on_failure {other}"), "use fail or skip"));
            }
        };
        Ok(LoaderOptions {
            batch_size: Some(self.batch_size),
            shuffle: self.shuffle,
            sampler: self.sampler.map(|sampler| Box::new(sampler.get().shared()) as _),
            batch_sampler: self.batch_sampler.map(|sampler| Box::new(sampler.get().shared()) as _),
            workers: self.workers,
            drop_last: self.drop_last,
            timeout: self.timeout.map(|timeout| seconds(py, timeout)).transpose()?,
            worker_init: self.worker_init.map(|init| Arc::new(calling(init)) as _),
            seed: self.seed,
            prefetch_factor: self.prefetch_factor,
            persistent_workers: self.persistent_workers,
            in_order: self.in_order,
            on_failure,
            retries: self.retries,
            retry_pause: seconds(py, self.retry_pause)?,
            memory: None,
        })
    }
}

/// Returns the function that calls one of Python with the number of a worker.
fn calling(init: Py<PyAny>) -> impl Fn(&WorkerInfo) -> Result<(), Cause> + Send + Sync {
    move |worker| in_python(|py| init.call1(py, (worker.id,)).map(drop))
}

/// Samples that a function of Python fetches by their index.
pub(super) struct Fetched {
    pub(super) fetch: Py<PyAny>,
    pub(super) len: usize,
}

impl Dataset for Fetched {
    type Sample = Object;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize, _: &Fetch<'_>) -> Result<Object, Cause> {
        in_python(|py| self.fetch.call1(py, (index,)))
    }
}

/// Makes a batch of a list of samples by a function of Python.
pub(super) fn collated(collate: &Py<PyAny>, samples: Vec<Object>) -> Result<Object, Cause> {
    in_python(|py| collate.call1(py, (PyList::new(py, samples)?,)))
}

/// Runs something with the interpreter's lock. Fails as the interpreter ends.
fn in_python<T>(run: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, Cause> {
    let done = Python::try_attach(run).ok_or("the interpreter has ended")?;
    done.map_err(|error| Box::new(error) as Cause)
}
